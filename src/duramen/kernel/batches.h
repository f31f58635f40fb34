/* Kafka's record batches and the messages of its older formats; all big-endian.
 *
 *   batch (magic 2)                                        message (magic 0 and 1)
 *    0  base_offset      i64      43  producer_id    i64    0  offset      i64
 *    8  length           i32      51  producer_epoch i16    8  size        i32, of what follows
 *   12  leader_epoch     i32      53  base_sequence  i32   12  crc         u32, CRC-32 of what follows
 *   16  magic            i8       57  records        i32   16  magic       i8
 *   17  crc              u32      61  records              17  attributes  i8
 *   21  attributes       i16                               18  timestamp   i64, magic 1 only
 *   23  last_delta       i32                                .  key_length  i32, -1 for null; key
 *   27  base_timestamp   i64                                .  value_length i32, -1 for null; value
 *   35  max_timestamp    i64
 *
 * The CRC-32C of a batch covers everything after it. Every length is checked against what remains before it is used.
 * Nothing is decompressed here. */
#ifndef DURAMEN_BATCHES_H
#define DURAMEN_BATCHES_H

#include "bytes.h"
#include "crc.h"

enum { BATCH_HEADER_BYTES = 61, BATCH_PREFIX_BYTES = 12, BATCH_MAGIC_AT = 16, LEAST_RECORD_BYTES = 7 };
enum { BATCH_CODEC = 7, BATCH_CONTROL = 32 };

/* The number of layout.NULL_LENGTH. */
#define NULL_LENGTH UINT32_MAX

typedef struct {
    int64_t base_offset, last_offset, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence,
        leader_epoch, position, data_position, next;
    uint32_t data_length, records, attributes, magic;
} batch;

/* The arrays of layout.BatchColumns, layout.RecordRanges, layout.RecordColumns and layout.HeaderColumns. */
typedef struct {
    int64_t *base_offset, *last_offset, *base_timestamp, *max_timestamp, *producer_id, *producer_epoch,
        *base_sequence, *leader_epoch, *position, *data_position;
    uint32_t *data_length, *records, *visible, *attributes, *magic;
    int64_t count;
} batch_columns;

typedef struct {
    const int64_t *position, *length, *records, *row, *base_offset, *last_offset, *base_timestamp;
    const uint32_t *in_plain;
    int64_t count;
} record_ranges;

/* The bytes of a file, and what its compressed batches unfolded to. */
typedef struct {
    const uint8_t *bytes[2];
    int64_t size_bytes[2];
} record_sources;

typedef struct {
    int64_t *offset, *timestamp, *position, *key_position, *value_position, *headers_position;
    uint32_t *key_length, *value_length, *headers;
    int64_t count;
} record_columns;

typedef struct {
    int64_t *key_position, *value_position;
    uint32_t *key_length, *value_length;
    int64_t count;
} header_columns;

/* Room for the visible records that a scan passes. `count` of them were taken, or -1: some batch is compressed, is a
 * message, or does not hold what it states; or the first one does not fit. */
typedef struct {
    record_columns records;
    duramen_value_room values;
    int64_t count, copied;
} taken_records;

/* `digests`, unless it is NULL, takes in the bytes that the scan goes over. `taken`, unless it is NULL, takes their
 * records; the scan then also ends before a batch that may not fit into it, unless that is the first. */
duramen_scan_end duramen_scan_batches(const uint8_t *buf, int64_t position, int64_t end, batch_columns *out,
                                      int64_t max_bytes, int64_t max_records, int64_t previous_offset, int verify,
                                      duramen_digests *digests, taken_records *taken);

/* First position >= `position` where a whole, valid batch or message with an offset above `previous_offset` starts. */
int64_t duramen_find_batch(const uint8_t *buf, int64_t position, int64_t end, int64_t previous_offset);

/* The records of every range, from its `row` on. Returns how many, or -1 - the number of the first range whose records
 * do not fill it exactly or do not fit into `out`. Headers are counted, and looked at only if `walk_headers`.
 * `values`, unless it is NULL, takes the values; the ranges then follow each other without a gap in their rows. */
int64_t duramen_scan_records(const record_sources *sources, const record_ranges *ranges, record_columns *out,
                             int walk_headers, const duramen_value_room *values);

/* The headers of every record, one after another. Returns how many, or -1 - the first row that does not fit. */
int64_t duramen_scan_headers(const uint8_t *buf, int64_t buf_bytes, const int64_t *positions, const uint32_t *counts,
                             int64_t rows, header_columns *out);

#endif

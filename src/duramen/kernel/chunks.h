/* Osiris chunks: a 48-byte big-endian header, a Bloom filter, length-prefixed entries, tracking.
 *
 *    0  magic 0x5, version  2 x u4     24  chunk_id        u64
 *    1  type                u8         32  crc             u32, CRC-32 of the entries
 *    2  entries             u16        36  data_length     u32, of the entries
 *    4  records             u32        40  trailer_length  u32
 *    8  timestamp           i64        44  filter_length   u8, then three reserved bytes
 *   16  epoch               u64        48  filter, entries, trailer
 *
 * Every length is checked against what remains before it is used. Sub-batches are never opened here. */
#ifndef DURAMEN_CHUNKS_H
#define DURAMEN_CHUNKS_H

#include "bytes.h"
#include "crc.h"

enum { CHUNK_HEADER_BYTES = 48, SIMPLE_HEADER_BYTES = 4, SUB_BATCH_HEADER_BYTES = 11 };
enum { CHUNK_USER = 0, CHUNK_DELTA = 1, CHUNK_SNAPSHOT = 2 };
enum { TRACKING_SEQUENCE = 0, TRACKING_OFFSET = 1, TRACKING_TIMESTAMP = 2 };

/* The number of layout.BAD_TRACKING. */
#define BAD_TRACKING UINT32_MAX

typedef struct {
    int64_t chunk_id, timestamp, epoch, position, data_position, inflated_bytes, next;
    uint32_t data_length, trailer_length, records, entries, chunk_type, sub_batches, tracking;
} chunk;

typedef struct {
    int64_t offset, value_position, next;
    uint32_t value_length, sub_batch, records, uncompressed_length;
} chunk_entry;

/* The arrays of layout.ChunkColumns and layout.EntryColumns. */
typedef struct {
    int64_t *chunk_id, *timestamp, *epoch, *position, *data_position, *inflated_bytes;
    uint32_t *data_length, *trailer_length, *records, *entries, *chunk_type, *sub_batches, *tracking;
    int64_t count;
} chunk_columns;

typedef struct {
    int64_t *offset, *timestamp, *position, *value_position;
    uint32_t *value_length, *sub_batch, *records, *uncompressed_length;
    int64_t count;
} entry_columns;

/* `digests`, unless it is NULL, takes in the bytes that the scan goes over: those from `position` to where it ends. */
duramen_scan_end duramen_scan_chunks(const uint8_t *buf, int64_t position, int64_t end, chunk_columns *out,
                                     int64_t max_bytes, int64_t max_records, int64_t previous_offset, int verify,
                                     duramen_digests *digests);

/* Passes over chunks by their headers to the one that holds the offset `target`, checks that one, and finds the
 * entry. STOP_LIMIT with hit->offset >= 0 when it was found, with -1 when no user record has that offset. */
int64_t duramen_seek_chunk(const uint8_t *buf, int64_t position, int64_t end, int64_t target,
                           int64_t previous_offset, chunk *at, chunk_entry *hit);

/* First position >= `position` where a whole, valid chunk with an id above `previous_offset` starts. */
int64_t duramen_find_chunk(const uint8_t *buf, int64_t position, int64_t end, int64_t previous_offset);

/* One row per entry of the user chunks. Returns the rows, or -1 - row for the first chunk whose entries do not lie
 * where it says or do not fit into `out`. */
int64_t duramen_scan_entries(const uint8_t *buf, int64_t buf_bytes, const chunk_columns *chunks, entry_columns *out);

/* Records with a u32 length before each. Returns `count` when exactly that many fill the range, else -1 - the number
 * of whole ones that came before the misfit. */
int64_t duramen_scan_prefixed(const uint8_t *buf, int64_t position, int64_t end, int64_t count, int64_t *positions,
                              uint32_t *lengths);

/* The same layout, written. Returns the bytes, or -1 - row for the first row that does not fit. */
int64_t duramen_encode_entries(uint8_t *out, int64_t capacity, const duramen_values *values, int64_t base_position,
                               int64_t *positions);

/* Where chunks start: at row 0, after every break (breaks[row] lies between a row and the next; or NULL), and wherever
 * one more entry would be more than max_records, or take a chunk that has one already over max_bytes. Returns how many
 * of `starts`, which has room for every row, were filled in; or -1 - row for the first value that does not fit. */
int64_t duramen_split_chunks(const duramen_values *values, const uint8_t *breaks, int64_t max_bytes,
                             int64_t max_records, int64_t *starts);

/* User chunks of simple entries. Reads chunk_id, timestamp, epoch and records of each row of `chunks`, and fills in
 * the other columns. Returns the bytes, or -1 - row for the first chunk that does not fit. */
int64_t duramen_encode_chunks(uint8_t *out, int64_t capacity, int version, chunk_columns *chunks,
                              const duramen_values *values, int64_t base_position);

#endif

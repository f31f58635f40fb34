/* One record, written to the end of an open segment together with the watermark that acknowledges it.
 * The only file access of the kernel: its twin, which goes through the disk interface, is disk/record_writer.py.
 *
 *   what is stored into the watermark page (see sidecar/watermark.py), in one write at byte 0
 *    0  counter      u32      of stores, in the byte order of the machine
 *    4  slot                  as the caller gave it; little-endian, of which this module changes
 *       8  number       i64
 *      24  position     i64
 *      32  next_offset  i64
 *      40  durable_position, durable_offset  i64   of the last record that is synced
 *      64  crc32c, durable_crc32c  u32   of the segment up to either position
 *      76  slot_crc     u32   CRC-32C of the slot before it
 *
 *   what is written to the index of chunks, if there is one; big-endian
 *    0  chunk_id u64, timestamp i64, epoch u64, position u32, type u8
 */
#ifndef DURAMEN_APPEND_H
#define DURAMEN_APPEND_H

#include "batches.h"
#include "chunks.h"
#include "frames.h"

enum { MARK_COUNTER_BYTES = 4, MARK_SLOT_BYTES = 80, MARK_BYTES = MARK_COUNTER_BYTES + MARK_SLOT_BYTES };

/* The numbers of layout.RecordKind. */
enum { RECORD_FRAME = 0, RECORD_SLOT = 1, RECORD_CHUNK = 2, RECORD_BATCH = 3 };

enum { INDEX_ENTRY_BYTES = 29 };

/* Results of duramen_append. */
enum {
    APPEND_DONE = 0,
    APPEND_NOT_DONE = 1, /* nothing was written */
    APPEND_TORN = 2,     /* some of the record may be written */
    APPEND_UNMARKED = 3, /* the record is written, the watermark may be stored */
    APPEND_UNSYNCED = 4  /* the record is written, and the sync failed */
};

/* A file that must still have this name. */
typedef struct {
    const char *path;
    uint64_t device, inode;
} append_place;

enum { MOST_PLACES = 4 };

typedef struct {
    uint8_t *data;
    int64_t size_bytes;
} append_buffer;

/* What does not change while a segment is open, and the files. */
typedef struct {
    int kind, is_ordered, has_digest;
    frame_layout layout;   /* of a frame */
    int64_t slot_bytes;    /* of a fixed-slot record, without its checksum */
    int64_t epoch;         /* of a chunk or batch, each of which holds one record */
    int chunk_version;
    int64_t time_unit_us;  /* 0: records have no time */
    int file, index, page; /* no index: -1 */
    const void *counter;   /* the page's counter, mapped only for its address; NULL without futex */
    append_place places[MOST_PLACES]; /* the first is the lock */
    int place_count;
    int64_t process;       /* that opened the log: a forked child writes nothing */
    uint8_t *buffer;
    int64_t buffer_bytes;
    /* The rows that are filled, of the kind: one for each record since the writer was armed. */
    frame_columns frames;
    int64_t *slot_offsets, *slot_positions;
    chunk_columns chunks;
    batch_columns batches;
} append_target;

/* The last values that the next record may reach. */
typedef struct {
    int64_t position, next_offset, us, rows, timed_records, timed_bytes;
    int64_t synced_position; /* instead of the first, where a sync follows */
} append_limits;

typedef struct {
    int64_t position, next_offset, last_us, number;
    int64_t index_position; /* unchanged by an append whose index entry could not be written */
    uint32_t crc32c, counter, durable_crc32c;
    int64_t durable_position, durable_offset;
    int64_t rows, timed_records, timed_bytes;
} append_state;

typedef struct {
    const uint8_t *value, *headers;
    int64_t value_bytes, headers_bytes, us; /* us < 0: now */
    int64_t now_us;                         /* < 0: of the clock of the machine */
    int is_timed;
} append_record;

/* Writes the record after `before`, and sets `after`; the row after those of `before` is filled as an encoder does.
 * `mark` is the last store, with the state of `before`, and becomes the next one. Changes `mark`, `after` and that row
 * only. */
int duramen_append(const append_target *to, const append_limits *limits, const append_state *before,
                   const append_record *record, uint8_t *mark, append_state *after);

/* The steps of an append, for append_queue.c. */

/* Encodes the record after `before`, and sets `after`, without the number, counter and digest of `before`. Returns its
 * size; -1 where the ordinary path must decide. */
int64_t duramen_encode_next(const append_target *to, const append_limits *limits, const append_state *before,
                            const append_record *record, append_buffer out, append_state *after);
/* Whether the process is the one that opened the log, the segment has a name, and the lock is in its place. */
int duramen_is_in_place(const append_target *to);
/* Whether all files are in their places. */
int duramen_is_whole(const append_target *to);
int64_t duramen_put_entry(const append_target *to, const append_state *before);
void duramen_put_mark(uint8_t *mark, const append_state *state);
void duramen_wake_readers(const append_target *to);

/* Seconds of the monotonic clock. */
double duramen_monotonic_s(void);

#endif

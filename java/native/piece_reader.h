/* One piece of a segment file, read by the kernel's scan into columns at given addresses.
 *
 * The file is read through a window of memory and never mapped: a file that something truncates gives an error. A piece
 * is handed over as far as it is exactly what the planner said. Whatever else is found, from a wrong checksum to an
 * end that could be a torn record, is for the Python reader to judge: DURAMEN_PIECE_PYTHON. Knows no format: all that
 * is particular is in the duramen_piece that duramen/spark/native_splits.py packs. */
#ifndef DURAMEN_PIECE_READER_H
#define DURAMEN_PIECE_READER_H

#include "frames.h"

/* The numbers of layout.RecordKind. */
enum { PIECE_FRAMES = 0, PIECE_SLOTS = 1, PIECE_CHUNKS = 2, PIECE_BATCHES = 3 };

/* Results of duramen_piece_next below 0. No room: `needed_bytes` of a batch says how much a single value or all keys
 * need; nothing was passed over. Again: no wanted row in many bytes, and the caller may want to stop. */
enum {
    DURAMEN_PIECE_PYTHON = -1,
    DURAMEN_PIECE_VALUE_ROOM = -2,
    DURAMEN_PIECE_KEY_ROOM = -3,
    DURAMEN_PIECE_AGAIN = -4
};

/* The order of native.py. -1: absent. */
typedef struct {
    int64_t kind;
    int64_t start, previous_offset, end, visible_bytes; /* bytes start to end; the file has visible_bytes or more */
    int64_t from_offset, to_offset, next_base;          /* to_offset and next_base are exclusive */
    int64_t has_times, from_us, last_us;
    int64_t verify;
    int64_t time_unit_us; /* 0: no times */
    int64_t signed_times, time_kind; /* of records with a time: 0 given by the producer, 1 taken at the append */
    int64_t shows_gaps; /* whether a gap before the next segment is a loss */
    int64_t head_bytes, head_crc32c; /* the bytes before the first record */
    int64_t sealed_bytes, sealed_crc32c, sealed_crc32;
    int64_t mark_position, mark_offset, mark_crc32c; /* after these bytes comes that offset */
    int64_t key_marker, null_marker; /* how the headers of a record begin that are a key; of one whose value is null */
    int64_t record_bytes;
    frame_layout layout;
} duramen_piece;

/* Where a batch goes. Columns may be NULL; a column of values has all of its buffers or none. Validity is a bitmap. */
typedef struct {
    int64_t capacity, values_bytes, keys_bytes;
    int64_t *offset, *position, *timestamp;
    uint8_t *timestamp_valid;
    int32_t *time_kind; /* as in the piece; -1 none */
    int32_t *value_offsets;
    uint8_t *values, *value_valid;
    int32_t *key_offsets;
    uint8_t *keys, *key_valid;
    int64_t wants_blocks; /* whether all of the user headers are wanted, and not only null values */
    /* results */
    int64_t first_offset, last_offset, needed_bytes;
} duramen_piece_batch;

typedef struct duramen_piece_reader duramen_piece_reader;

#define DURAMEN_EXPORTED __attribute__((visibility("default"))) /* for tests without a JVM */

/* NULL: Python must read this piece. */
DURAMEN_EXPORTED duramen_piece_reader *duramen_piece_open(const char *path, const duramen_piece *piece);

/* Rows of the next batch, 0 at the end of a piece that is as it should be, or one of the results below 0. */
DURAMEN_EXPORTED int64_t duramen_piece_next(duramen_piece_reader *reader, duramen_piece_batch *batch);

DURAMEN_EXPORTED void duramen_piece_close(duramen_piece_reader *reader);

#endif

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

/* Results of duramen_piece_next below 0. No room: nothing was passed over, and the room of the batch says what it needs
 * where that is more. Again: no wanted row in many bytes, and the caller may want to stop. */
enum { DURAMEN_PIECE_PYTHON = -1, DURAMEN_PIECE_ROOM = -2, DURAMEN_PIECE_AGAIN = -3 };

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
    int64_t key_marker, null_marker; /* how user headers begin; those of a record whose value is null */
    int64_t walks_headers; /* whether records are read up to the last of their headers */
    int64_t record_bytes;
    frame_layout layout;
} duramen_piece;

/* Bytes of a column, as Arrow lays them out; `bytes` is the room for them. */
typedef struct {
    int64_t bytes;
    int32_t *offsets;
    uint8_t *data, *valid;
} duramen_piece_values;

/* Where a batch goes: the numbers of NativePiece, in their order. Columns may be NULL. Validity is a bitmap. Headers are
 * lists of a key and a value. */
typedef struct {
    int64_t capacity;
    int64_t *offset, *position, *timestamp;
    uint8_t *timestamp_valid;
    int32_t *time_kind; /* as in the piece; -1 none */
    duramen_piece_values values, keys;
    int64_t headers; /* room for the headers of all rows */
    int32_t *list_offsets;
    uint8_t *list_valid;
    duramen_piece_values header_keys, header_values;
    int64_t first_offset, last_offset; /* results */
} duramen_piece_batch;

/* Unfolds the compressed body of a batch: the bytes written into `out`, or a number below 0. */
typedef int64_t (*duramen_piece_unfold)(void *context, uint32_t codec, const uint8_t *body, int64_t size, uint8_t *out,
                                        int64_t room);

typedef struct {
    duramen_piece_unfold unfold; /* NULL: Python reads what is compressed */
    void *context;
} duramen_piece_codecs;

typedef struct duramen_piece_reader duramen_piece_reader;

#define DURAMEN_EXPORTED __attribute__((visibility("default"))) /* for tests without a JVM */

/* NULL: Python must read this piece. */
DURAMEN_EXPORTED duramen_piece_reader *duramen_piece_open(const char *path, const duramen_piece *piece);

/* Rows of the next batch, 0 at the end of a piece that is as it should be, or one of the results below 0. */
DURAMEN_EXPORTED int64_t duramen_piece_next(duramen_piece_reader *reader, duramen_piece_batch *batch,
                                            const duramen_piece_codecs *codecs);

DURAMEN_EXPORTED void duramen_piece_close(duramen_piece_reader *reader);

#endif

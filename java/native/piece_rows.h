/* Rows of a window: what a scan of the kernel found, in arrays of one shape for all kinds of records. */
#ifndef DURAMEN_PIECE_ROWS_H
#define DURAMEN_PIECE_ROWS_H

#include "batches.h"
#include "chunks.h"
#include "piece_blocks.h"
#include "piece_reader.h"

#define PIECE_ROWS (INT64_C(1) << 16)

/* What the compressed batches of a step unfolded to. */
typedef struct {
    uint8_t *bytes;
    int64_t filled, capacity;
} piece_plain;

/* Where the payloads lie. */
typedef struct {
    const uint8_t *bytes;
    int64_t filled;
} piece_source;

/* Positions of records are those in the window, those of payloads in their source. */
typedef struct {
    frame_columns frames;
    int64_t *key_position, *headers_position; /* of batches */
    uint32_t *key_length, *headers;           /* how many */
    uint8_t *has_time, *has_value, *has_key;
    int8_t *time_kind;
    /* of chunks and batches */
    chunk_columns chunks;
    entry_columns entries;
    batch_columns batches;
    record_columns records;
    record_ranges ranges;
    header_columns pairs; /* the headers of all rows */
    uint8_t *has_content;
    piece_plain plain;
    piece_source source;
    void *memory, *more_memory, *pairs_memory;
} piece_rows;

/* The bytes that are scanned: from `position` on, up to `end`; `at` is where the window lies in the file. */
typedef struct {
    const uint8_t *bytes;
    int64_t filled, at, position, end, previous_offset;
} piece_window;

/* How the scan ended, in numbers of the window, and how many rows it gave; -1: only Python can show them. */
typedef struct {
    duramen_scan_end end;
    int64_t rows;
} piece_scan;

int make_piece_rows(piece_rows *rows, int64_t kind);
void free_piece_rows(piece_rows *rows);

/* `takes_values`: copy values into the batch on the way, which frames allow. */
piece_scan scan_piece_rows(piece_rows *rows, const duramen_piece *piece, const piece_window *window,
                           const duramen_piece_batch *batch, const duramen_piece_codecs *codecs, int takes_values);

/* Moves the rows that the piece wants to the front, and returns how many. */
int64_t select_piece_rows(piece_rows *rows, const duramen_piece *piece, int64_t count);

/* Fills in the columns of the batch, from a window that lies at `at` in the file. Returns count, or one of the results
 * below 0. */
int64_t put_piece_rows(piece_rows *rows, const duramen_piece *piece, int64_t at, duramen_piece_batch *batch,
                       int64_t count, int has_copied);

#endif

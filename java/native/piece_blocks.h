/* Blocks of user headers: key and headers of a record, and whether its value is null. The bytes are described in
 * duramen/formats/keratin/header_block.py, and what is found here is what that module finds. */
#ifndef DURAMEN_PIECE_BLOCKS_H
#define DURAMEN_PIECE_BLOCKS_H

#include "batches.h"

enum { LEAST_HEADER_BYTES = 8 };

/* The bytes from `from` to `end` of a buffer. */
typedef struct {
    const uint8_t *bytes;
    int64_t from, end;
    uint32_t key_marker, null_marker;
    int has_payload;
} piece_block;

/* A length of NULL_LENGTH stands for null. */
typedef struct {
    int64_t position;
    uint32_t length;
} piece_span;

typedef struct {
    piece_span key;
    uint32_t headers;
    int is_null;
} piece_block_fields;

/* Reads a block, whatever its bytes are. Its headers go into the rows of `headers` from `row` on, which are one for each
 * LEAST_HEADER_BYTES and one more; they are only counted where that is NULL. */
piece_block_fields read_piece_block(const piece_block *block, header_columns *headers, int64_t row);

#endif

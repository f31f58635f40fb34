#include "piece_blocks.h"

#include "text.h"

enum { LENGTH_BYTES = 4, PREFIX_BYTES = 8, WRAPPER_BYTES = 16 };

/* A length, and so many bytes unless it stands for null. */
static int read_sized(const piece_block *b, int64_t *at, piece_span *out)
{
    if (b->end - *at < LENGTH_BYTES) return 0;
    out->length = load32(b->bytes + *at, 1);
    out->position = *at += LENGTH_BYTES;
    if (out->length == NULL_LENGTH) return 1;
    if ((int64_t)out->length > b->end - *at) return 0;
    *at += out->length;
    return 1;
}

static void put_header(header_columns *headers, int64_t row, piece_span name, piece_span value)
{
    headers->key_position[row] = name.position;
    headers->key_length[row] = name.length;
    headers->value_position[row] = value.position;
    headers->value_length[row] = value.length;
}

/* The fields, and how long the last header's name and value are, if marker, lengths and names are sound and nothing is
 * left over. */
static int parse_fields(const piece_block *b, header_columns *headers, int64_t row, piece_block_fields *out,
                        piece_span last[2])
{
    int64_t at = b->from + LENGTH_BYTES;

    if (b->end - b->from < PREFIX_BYTES) return 0;
    const uint32_t marker = load32(b->bytes + b->from, 1);
    out->is_null = marker == b->null_marker && !b->has_payload;
    if (!out->is_null && marker != b->key_marker) return 0;
    if (!read_sized(b, &at, &out->key)) return 0;
    for (out->headers = 0; at < b->end; out->headers++) {
        if (!read_sized(b, &at, &last[0]) || last[0].length == NULL_LENGTH) return 0;
        if (!read_sized(b, &at, &last[1])) return 0;
        if (!duramen_is_utf8(b->bytes + last[0].position, last[0].length)) return 0;
        if (headers != NULL) put_header(headers, row + out->headers, last[0], last[1]);
    }
    return 1;
}

static int says_something(const piece_block_fields *f)
{
    return f->key.length != NULL_LENGTH || f->headers > 0 || f->is_null;
}

/* Whether the value of a wrapper, which is a block of one header with the empty name, must not stand bare: it is empty,
 * or a block itself. Wrappers may hold wrappers: one step for each, then one look at the innermost. */
static int holds_a_block(piece_block b)
{
    piece_block_fields fields;
    piece_span last[2];
    while (b.end - b.from >= WRAPPER_BYTES && load32(b.bytes + b.from, 1) == b.key_marker &&
           load32(b.bytes + b.from + 4, 1) == NULL_LENGTH && load32(b.bytes + b.from + 8, 1) == 0 &&
           load32(b.bytes + b.from + 12, 1) == b.end - b.from - WRAPPER_BYTES)
        b.from += WRAPPER_BYTES;
    if (b.from == b.end) return 1;
    return parse_fields(&b, NULL, 0, &fields, last) && says_something(&fields);
}

/* Whether an encoder could have written the block. */
static int is_own(const piece_block *b, const piece_block_fields *f, const piece_span last[2])
{
    if (!says_something(f)) return 0; /* which is no block at all */
    if (f->key.length != NULL_LENGTH || f->is_null || f->headers != 1) return 1;
    return last[0].length > 0 || last[1].length == NULL_LENGTH || last[1].length == 0 || holds_a_block(*b);
}

piece_block_fields read_piece_block(const piece_block *b, header_columns *headers, int64_t row)
{
    piece_block_fields fields;
    piece_span last[2];
    if (b->from == b->end) return (piece_block_fields){{0, NULL_LENGTH}, 0, 0};
    if (parse_fields(b, headers, row, &fields, last) && is_own(b, &fields, last)) return fields;
    if (headers != NULL)
        put_header(headers, row, (piece_span){b->from, 0}, (piece_span){b->from, (uint32_t)(b->end - b->from)});
    return (piece_block_fields){{0, NULL_LENGTH}, 1, 0};
}

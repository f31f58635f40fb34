/* How many bytes the compressed bodies of Kafka's batches unfold to at most, as far as their framing says. Nothing is
 * decompressed here. Each member of gzip ends with its length, a block of snappy begins with it, a block of LZ4 or zstd
 * has a largest size. Every length is checked against what remains before it is used. */
#ifndef DURAMEN_BODIES_H
#define DURAMEN_BODIES_H

#include "bytes.h"

/* The numbers of layout.BodyFault, in place of a bound. */
enum {
    BODY_UNKNOWN_CODEC = -1,
    BODY_CUT_SHORT = -2,
    BODY_NO_FRAME = -3,
    BODY_BAD_BLOCK = -4,
};

/* The codecs in Kafka's attributes. */
enum { CODEC_GZIP = 1, CODEC_SNAPPY = 2, CODEC_LZ4 = 3, CODEC_ZSTD = 4 };

typedef struct {
    const int64_t *position;
    const uint32_t *length, *codec;
    int64_t count;
} body_columns;

/* Fills in the bound of each body, or its fault. Returns 0, or -1 - the first row that lies outside of the buffer. */
int64_t duramen_bound_bodies(const uint8_t *buf, int64_t buf_bytes, const body_columns *bodies, int64_t *bounds);

#endif

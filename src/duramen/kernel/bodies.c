#include "bodies.h"

/* No codec unfolds more: a gzip stream by 1032 to 1, a byte of LZ4 to 255 bytes, a block of zstd to 128 KiB. */
enum { GZIP_RATIO = 1032, GZIP_LEAST_BYTES = 18, LZ4_RATIO = 255, ZSTD_BLOCK_BYTES = 128 << 10 };
enum { XERIAL_HEADER_BYTES = 16, LZ4_HEADER_BYTES = 7 };

static const uint8_t XERIAL[8] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};
static const uint32_t LZ4_MAGIC = 0x184D2204, LZ4_STORED = UINT32_C(1) << 31;
static const uint32_t ZSTD_MAGIC = 0xFD2FB528, ZSTD_SKIPPED = 0x184D2A50;

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Whether a member of a gzip stream may start there: deflate, known flags, and one of the levels that it can state. */
static inline int may_be_member(const uint8_t *at)
{
    return at[1] == 0x8b && at[2] == 8 && at[3] < 0x20 && at[8] < 5 && at[8] % 2 == 0;
}

/* Each member of the stream ends with its length. Where one starts is only known after unfolding the one before: the
 * bytes before whatever may be a start count, if the member before it can have that length. */
static int64_t bound_gzip(const uint8_t *body, int64_t size)
{
    if (size < GZIP_LEAST_BYTES) return BODY_CUT_SHORT;
    const uint8_t *at = body + GZIP_LEAST_BYTES, *const last = body + size - GZIP_LEAST_BYTES;
    int64_t total = load32(body + size - 4, 0);
    while (at <= last && (at = memchr(at, 0x1f, (size_t)(last - at) + 1)) != NULL) {
        const int64_t length = load32(at - 4, 0);
        if (may_be_member(at) && length <= GZIP_RATIO * (at - body)) total += length;
        at++;
    }
    return least(total, GZIP_RATIO * size);
}

/* The varint that a block of snappy begins with: 32 bits. */
static int64_t bound_snappy_block(const uint8_t *block, int64_t size)
{
    uint64_t length = 0;
    for (int64_t at = 0; at < 5; at++) {
        if (at >= size) return BODY_CUT_SHORT;
        length |= (uint64_t)(block[at] & 0x7f) << (7 * at);
        if (!(block[at] & 0x80)) return length > UINT32_MAX ? BODY_BAD_BLOCK : (int64_t)length;
    }
    return BODY_BAD_BLOCK;
}

/* One raw block, or the blocks of the Java library. */
static int64_t bound_snappy(const uint8_t *body, int64_t size)
{
    int64_t total = 0;
    if (size < (int64_t)sizeof XERIAL || memcmp(body, XERIAL, sizeof XERIAL) != 0)
        return bound_snappy_block(body, size);
    for (int64_t at = XERIAL_HEADER_BYTES; at < size;) {
        if (size - at < 4) return BODY_CUT_SHORT;
        const int64_t length = load32(body + at, 1);
        at += 4;
        if (length > size - at) return BODY_BAD_BLOCK;
        const int64_t added = bound_snappy_block(body + at, length);
        if (added < 0) return added;
        total += added;
        at += length;
    }
    return total;
}

static int64_t bound_lz4(const uint8_t *body, int64_t size)
{
    if (size < LZ4_HEADER_BYTES || load32(body, 0) != LZ4_MAGIC) return BODY_NO_FRAME;
    const int flags = body[4], block_code = body[5] >> 4 & 7;
    if (block_code < 4) return BODY_BAD_BLOCK;
    const int64_t block_bytes = INT64_C(1) << (8 + 2 * block_code);
    const int64_t checksum_bytes = flags & 0x10 ? 4 : 0;
    int64_t at = LZ4_HEADER_BYTES + (flags & 0x08 ? 8 : 0) + (flags & 0x01 ? 4 : 0);
    int64_t total = 0;
    for (;;) {
        if (size - at < 4) return BODY_CUT_SHORT;
        const uint32_t stated = load32(body + at, 0);
        if (stated == 0) return total;
        const int64_t length = stated & ~LZ4_STORED;
        if (length + checksum_bytes > size - at - 4) return BODY_CUT_SHORT;
        total += stated & LZ4_STORED ? length : least(block_bytes, LZ4_RATIO * length);
        at += 4 + length + checksum_bytes;
    }
}

/* The frame whose header is at `*at`, which moves behind it. */
static int64_t bound_zstd_frame(const uint8_t *body, int64_t size, int64_t *at)
{
    static const int64_t dictionary_bytes[4] = {0, 1, 2, 4}, size_widths[4] = {0, 2, 4, 8};
    if (*at >= size) return BODY_CUT_SHORT;
    const int flags = body[*at], is_single = flags >> 5 & 1;
    const int64_t width = flags >> 6 == 0 ? is_single : size_widths[flags >> 6];
    *at += 1 + !is_single + dictionary_bytes[flags & 3];
    if (width > size - *at) return BODY_CUT_SHORT;
    const uint64_t stated = load_uint(body + *at, width, 0) + (width == 2 ? 256 : 0);
    *at += width;
    int64_t total = 0;
    for (int is_last = 0; !is_last;) {
        if (size - *at < 3) return BODY_CUT_SHORT;
        const uint32_t block = (uint32_t)load_uint(body + *at, 3, 0);
        const int64_t length = block >> 3;
        const int kind = block >> 1 & 3;
        is_last = block & 1;
        *at += 3;
        const int64_t stored = kind == 1 ? 1 : length; /* a repeated byte */
        if (stored > size - *at) return BODY_CUT_SHORT;
        total += kind == 2 ? ZSTD_BLOCK_BYTES : length;
        *at += stored;
    }
    *at += flags & 4 ? 4 : 0;
    return width > 0 && stated < (uint64_t)total ? (int64_t)stated : total;
}

static int64_t bound_zstd(const uint8_t *body, int64_t size)
{
    int64_t at = 0, total = 0;
    while (at < size) {
        if (size - at < 4) return BODY_CUT_SHORT;
        const uint32_t magic = load32(body + at, 0);
        at += 4;
        if ((magic & 0xFFFFFFF0) == ZSTD_SKIPPED) {
            if (size - at < 4) return BODY_CUT_SHORT;
            at += 4 + (int64_t)load32(body + at, 0);
        } else if (magic == ZSTD_MAGIC) {
            const int64_t added = bound_zstd_frame(body, size, &at);
            if (added < 0) return added;
            total += added;
        } else {
            return BODY_NO_FRAME;
        }
    }
    return at == size ? total : BODY_CUT_SHORT;
}

static int64_t bound_body(const uint8_t *body, int64_t size, uint32_t codec)
{
    switch (codec) {
    case CODEC_GZIP: return bound_gzip(body, size);
    case CODEC_SNAPPY: return bound_snappy(body, size);
    case CODEC_LZ4: return bound_lz4(body, size);
    case CODEC_ZSTD: return bound_zstd(body, size);
    default: return BODY_UNKNOWN_CODEC;
    }
}

int64_t duramen_bound_bodies(const uint8_t *buf, int64_t buf_bytes, const body_columns *bodies, int64_t *bounds)
{
    for (int64_t row = 0; row < bodies->count; row++) {
        const int64_t at = bodies->position[row], size = bodies->length[row];
        if (at < 0 || at > buf_bytes || size > buf_bytes - at) return -1 - row;
        bounds[row] = bound_body(buf + at, size, bodies->codec[row]);
    }
    return 0;
}

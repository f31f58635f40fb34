/* CRC-32 (IEEE) and CRC-32C (Castagnoli) of byte ranges, by the fastest means that the running CPU has.
 * Knows no records and takes no other polynomial, width or bit order. Reads exactly data[0 .. len): never a byte
 * more, whatever the alignment. Needs GCC or clang: the choice of implementation is made before main. */
#ifndef DURAMEN_CRC_H
#define DURAMEN_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Both are the standard reflected CRCs, all ones in and out. `crc` is the value of the bytes before `data`, 0 for
 * none, as in zlib.crc32(data, value). `data` may be NULL when `len` is 0. */
uint32_t duramen_crc32(uint32_t crc, const uint8_t *data, size_t len);
uint32_t duramen_crc32c(uint32_t crc, const uint8_t *data, size_t len);

/* Both of the same bytes, which is hardly slower than one where the CPU can do it in one pass. */
typedef struct {
    uint32_t crc32c, crc32;
} duramen_digests;

void duramen_digest(duramen_digests *sums, const uint8_t *data, size_t len);

/* The CRC-32 of some bytes and of `len` more after them, of which the CRC-32 alone is `after`. */
uint32_t duramen_crc32_join(uint32_t before, uint32_t after, uint32_t len);

/* The digests of the bytes that a scan goes over. They are taken a stretch ahead of it, so that memory is read in order,
 * and what the scan reads is in the nearest cache: a scan that only looks at headers, far from each other, would be
 * slower than two passes otherwise. Where the scan stops, what was taken too much is taken back. */
#define DIGEST_STRETCH_BYTES 4096

typedef struct {
    duramen_digests sums, kept;
    int64_t until, kept_until;
} duramen_digest_ahead;

static inline void digest_ahead(duramen_digest_ahead *a, const uint8_t *buf, int64_t position, int64_t end)
{
    if (position < a->until) return;
    if (position - a->until > DIGEST_STRETCH_BYTES) { /* a long record: not twice */
        duramen_digest(&a->sums, buf + a->until, (size_t)(position - a->until));
        a->until = position;
    }
    const int64_t stop = end - position < DIGEST_STRETCH_BYTES ? end : position + DIGEST_STRETCH_BYTES;
    a->kept = a->sums;
    a->kept_until = a->until;
    duramen_digest(&a->sums, buf + a->until, (size_t)(stop - a->until));
    a->until = stop;
}

/* The digests up to `position`, which lies at or after the last one passed to digest_ahead. */
static inline duramen_digests digest_up_to(duramen_digest_ahead *a, const uint8_t *buf, int64_t position)
{
    if (position < a->until) {
        a->sums = a->kept;
        a->until = a->kept_until;
    }
    if (a->until < position) duramen_digest(&a->sums, buf + a->until, (size_t)(position - a->until));
    return a->sums;
}

typedef uint32_t (*duramen_crc_fn)(uint32_t, const uint8_t *, size_t);
typedef struct {
    const char *name;
    duramen_crc_fn fn;
} duramen_crc_variant;

typedef void (*duramen_digest_fn)(duramen_digests *, const uint8_t *, size_t);
typedef struct {
    const char *name;
    duramen_digest_fn fn;
} duramen_digest_variant;

/* For tests: every implementation that this CPU can run. The first is the portable one, the last is the one that
 * the functions above use. Returns how many there are. */
size_t duramen_crc32_variants(const duramen_crc_variant **out);
size_t duramen_crc32c_variants(const duramen_crc_variant **out);
size_t duramen_digest_variants(const duramen_digest_variant **out);

#endif

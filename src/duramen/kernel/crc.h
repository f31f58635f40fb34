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

typedef uint32_t (*duramen_crc_fn)(uint32_t, const uint8_t *, size_t);
typedef struct {
    const char *name;
    duramen_crc_fn fn;
} duramen_crc_variant;

/* For tests: every implementation that this CPU can run. The first is the portable one, the last is the one that
 * the functions above use. Returns how many there are. */
size_t duramen_crc32_variants(const duramen_crc_variant **out);
size_t duramen_crc32c_variants(const duramen_crc_variant **out);

#endif

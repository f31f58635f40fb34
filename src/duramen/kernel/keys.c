#include "keys.h"

#define ROTATE(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))
#define AHEAD 8 /* rows whose slots are fetched before they are looked at */

#define ROUND()                                                                                                       \
    do {                                                                                                              \
        v0 += v1, v1 = ROTATE(v1, 13) ^ v0, v0 = ROTATE(v0, 32);                                                      \
        v2 += v3, v3 = ROTATE(v3, 16) ^ v2;                                                                           \
        v0 += v3, v3 = ROTATE(v3, 21) ^ v0;                                                                           \
        v2 += v1, v1 = ROTATE(v1, 17) ^ v2, v2 = ROTATE(v2, 32);                                                      \
    } while (0)

static void siphash(const uint8_t *data, int64_t data_bytes, uint64_t key0, uint64_t key1, uint64_t *hash)
{
    uint64_t v0 = 0x736f6d6570736575u ^ key0, v1 = 0x646f72616e646f6du ^ key1 ^ 0xee;
    uint64_t v2 = 0x6c7967656e657261u ^ key0, v3 = 0x7465646279746573u ^ key1;
    uint64_t last = (uint64_t)data_bytes << 56;

    for (; data_bytes >= 8; data += 8, data_bytes -= 8) {
        const uint64_t word = load64(data, 0);
        v3 ^= word;
        ROUND();
        ROUND();
        v0 ^= word;
    }
    if (data_bytes > 0) last |= load_uint(data, data_bytes, 0);
    v3 ^= last;
    ROUND();
    ROUND();
    v0 ^= last;
    v2 ^= 0xee;
    for (int round = 0; round < 4; round++) ROUND();
    hash[0] = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int round = 0; round < 4; round++) ROUND();
    hash[1] = v0 ^ v1 ^ v2 ^ v3;
}

int64_t duramen_siphash_rows(const uint8_t *data, int64_t data_bytes, const int32_t *offsets, int64_t count,
                             uint64_t key0, uint64_t key1, uint64_t *hashes)
{
    for (int64_t row = 0; row < count; row++) {
        const int64_t from = offsets[row], to = offsets[row + 1];
        if (from < 0 || to < from || to > data_bytes) return -1 - row;
        siphash(data + from, to - from, key0, key1, hashes + 2 * row);
    }
    return count;
}

int64_t duramen_keep_newest(uint64_t *table, int64_t slots, int64_t most, int64_t *used, const uint64_t *hashes,
                            const int64_t *offsets, int64_t count)
{
    const uint64_t mask = (uint64_t)slots - 1;

    for (int64_t row = 0; row < count; row++) {
        if (row + AHEAD < count) __builtin_prefetch(table + 3 * (hashes[2 * (row + AHEAD) + 1] & mask));
        const uint64_t first = hashes[2 * row], second = hashes[2 * row + 1];
        const uint64_t mark = (uint64_t)offsets[row] + 1;
        uint64_t slot = second & mask;
        uint64_t *entry = table + 3 * slot;
        while (entry[2] != 0 && (entry[0] != first || entry[1] != second)) {
            slot = (slot + 1) & mask;
            entry = table + 3 * slot;
        }
        if (entry[2] == 0) {
            if (*used >= most) return row;
            entry[0] = first;
            entry[1] = second;
            entry[2] = mark;
            ++*used;
        } else if (mark > entry[2]) {
            entry[2] = mark;
        }
    }
    return count;
}

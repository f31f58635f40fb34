#include "hashes.h"

#define MULTIPLIER 0x5bd1e995u
#define SEED 0x9747b28cu

uint32_t duramen_murmur2(const uint8_t *data, int64_t data_bytes)
{
    uint32_t hash = SEED ^ (uint32_t)data_bytes;

    for (; data_bytes >= 4; data += 4, data_bytes -= 4) {
        uint32_t word = load32(data, 0) * MULTIPLIER;
        word = (word ^ word >> 24) * MULTIPLIER;
        hash = hash * MULTIPLIER ^ word;
    }
    if (data_bytes > 0) hash = (hash ^ (uint32_t)load_uint(data, data_bytes, 0)) * MULTIPLIER;
    hash = (hash ^ hash >> 13) * MULTIPLIER;
    return hash ^ hash >> 15;
}

int64_t duramen_murmur2_rows(const uint8_t *data, int64_t data_bytes, const int32_t *offsets, int64_t count,
                             uint32_t *hashes)
{
    for (int64_t row = 0; row < count; row++) {
        const int64_t from = offsets[row], to = offsets[row + 1];
        if (from < 0 || to < from || to > data_bytes) return -1 - row;
        hashes[row] = duramen_murmur2(data + from, to - from);
    }
    return count;
}

#include "columns.h"

int64_t duramen_gather(const uint8_t *buf, int64_t buf_bytes, const int64_t *positions, const uint32_t *lengths,
                       int64_t count, int32_t *offsets, uint8_t *data, int64_t data_bytes)
{
    const int64_t most = data_bytes < INT32_MAX ? data_bytes : INT32_MAX;
    int64_t at = 0;

    offsets[0] = 0;
    for (int64_t row = 0; row < count; row++) {
        const int64_t from = positions[row];
        const int64_t len = lengths[row];
        if (from < 0 || len > buf_bytes || from > buf_bytes - len || len > most - at) return -1 - row;
        if (len > 0) memcpy(data + at, buf + from, (size_t)len);
        at += len;
        offsets[row + 1] = (int32_t)at;
    }
    return at;
}

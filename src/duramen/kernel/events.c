#include "events.h"

#include "crc.h"

/* A checksum is linear: for each value of the number's last byte, what it changes. */
static void last_byte(int64_t rest_bytes, uint8_t *scratch, uint32_t *changes)
{
    memset(scratch, 0, (size_t)(8 + rest_bytes));
    const uint32_t zero = duramen_crc32c(0, scratch, (size_t)(8 + rest_bytes));

    changes[0] = 0;
    for (int bit = 0; bit < 8; bit++) {
        scratch[7] = (uint8_t)(1 << bit);
        const uint32_t change = duramen_crc32c(0, scratch, (size_t)(8 + rest_bytes)) ^ zero;
        for (int low = 0; low < 1 << bit; low++) changes[(1 << bit) | low] = changes[low] ^ change;
    }
}

void duramen_encode_run(const uint8_t *head, int64_t head_bytes, int64_t covered_from, uint64_t start, int64_t count,
                        const uint8_t *rest, int64_t rest_bytes, uint8_t *out)
{
    const uint32_t common = duramen_crc32c(0, head + covered_from, (size_t)(head_bytes - covered_from));
    uint32_t changes[256], crc = 0;

    last_byte(rest_bytes, out, changes); /* the first event's room, before anything is in it */
    for (int64_t row = 0; row < count; row++) {
        const uint64_t number = start + (uint64_t)row;
        const uint8_t last = (uint8_t)number;
        memcpy(out, head, (size_t)head_bytes);
        out += head_bytes;
        store64(out, number, 1);
        memcpy(out + 8, rest, (size_t)rest_bytes);
        /* `crc` is that of this number with a last byte of 0, as long as the other bytes stay. */
        if (row == 0 || last == 0) crc = duramen_crc32c(common, out, (size_t)(8 + rest_bytes)) ^ changes[last];
        out += 8 + rest_bytes;
        store32(out, crc ^ changes[last], 1);
        out += 4;
    }
}

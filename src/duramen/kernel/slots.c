#include "slots.h"

enum { CRC_BYTES = 4 };

static inline int valid_slot(const uint8_t *slot, int64_t record_bytes)
{
    return load32(slot, 1) == duramen_crc32c(0, slot + CRC_BYTES, (size_t)record_bytes);
}

duramen_scan_end duramen_scan_slots(const uint8_t *buf, int64_t position, int64_t end, int64_t record_bytes,
                                    int64_t max_slots, int verify, duramen_digests *digests)
{
    duramen_digest_ahead ahead = {.until = position};
    const int64_t slot_bytes = record_bytes + CRC_BYTES;
    int64_t count = 0;
    int64_t stop = STOP_END;

    if (digests != NULL) ahead.sums = *digests;
    while (position < end) {
        if (count == max_slots) {
            stop = STOP_LIMIT;
            break;
        }
        if (digests != NULL) digest_ahead(&ahead, buf, position, end);
        if (end - position < slot_bytes) {
            stop = all_zero(buf + position, end - position) ? STOP_ZEROS : STOP_SHORT_BODY;
            break;
        }
        if (verify && !valid_slot(buf + position, record_bytes)) {
            stop = all_zero(buf + position, end - position) ? STOP_ZEROS : STOP_BAD_CHECKSUM;
            break;
        }
        count++;
        position += slot_bytes;
    }
    if (digests != NULL) *digests = digest_up_to(&ahead, buf, position);
    return (duramen_scan_end){count, position, stop, position / slot_bytes - 1};
}

int64_t duramen_find_slot(const uint8_t *buf, int64_t position, int64_t end, int64_t record_bytes)
{
    int64_t kept = position;

    for (; end - position >= record_bytes + CRC_BYTES; position += record_bytes + CRC_BYTES) {
        if (position - kept > PASS_BYTES) {
            duramen_passed(buf + kept, buf + position);
            kept = position;
        }
        if (valid_slot(buf + position, record_bytes)) return position;
    }
    return DURAMEN_NOT_FOUND;
}

int64_t duramen_infer_slot(const uint8_t *buf, int64_t end, int64_t max_record_bytes)
{
    if (end < CRC_BYTES + 1) return 0;
    const uint32_t stored = load32(buf, 1);
    const int64_t most = max_record_bytes < end - CRC_BYTES ? max_record_bytes : end - CRC_BYTES;
    uint32_t crc = 0;

    for (int64_t size = 1; size <= most; size++) {
        crc = duramen_crc32c(crc, buf + CRC_BYTES + size - 1, 1);
        if (crc != stored) continue;
        const int64_t second = size + CRC_BYTES;
        if (end - second < size + CRC_BYTES || valid_slot(buf + second, size)) return size;
    }
    return 0;
}

int64_t duramen_encode_slots(uint8_t *out, int64_t capacity, const duramen_values *values, int64_t record_bytes)
{
    const int64_t slot_bytes = record_bytes + CRC_BYTES;
    int64_t at = 0;

    for (int64_t row = 0; row < values->count; row++, at += slot_bytes) {
        const uint8_t *value;
        int64_t length;
        if (!value_at(values, row, &value, &length) || length != record_bytes) return -1 - row;
        if (slot_bytes > capacity - at) return -1 - row;
        uint8_t *slot = out + at;
        memcpy(slot + CRC_BYTES, value, (size_t)record_bytes);
        /* Where it comes from: bytes stored a moment ago are slow to load again. */
        store32(slot, duramen_crc32c(0, value, (size_t)record_bytes), 1);
    }
    return at;
}

/* Fixed-size slots: a big-endian CRC-32C of the payload, then the payload. Offsets are arithmetic. */
#ifndef DURAMEN_SLOTS_H
#define DURAMEN_SLOTS_H

#include "bytes.h"
#include "crc.h"

/* `digests`, unless it is NULL, takes in the bytes that the scan goes over: those from `position` to where it ends. */
duramen_scan_end duramen_scan_slots(const uint8_t *buf, int64_t position, int64_t end, int64_t record_bytes,
                                    int64_t max_slots, int verify, duramen_digests *digests);

/* First slot boundary at or after `position` (itself a boundary) that holds a valid slot. */
int64_t duramen_find_slot(const uint8_t *buf, int64_t position, int64_t end, int64_t record_bytes);

/* The smallest record size, up to max_record_bytes, for which slot 0 is valid and slot 1 is too where it is whole.
 * 0 when there is none. */
int64_t duramen_infer_slot(const uint8_t *buf, int64_t end, int64_t max_record_bytes);

/* Writes a slot per value. Returns the bytes, or -1 - row for the first value that has another size or no room. */
int64_t duramen_encode_slots(uint8_t *out, int64_t capacity, const duramen_values *values, int64_t record_bytes);

#endif

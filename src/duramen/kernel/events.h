/* Runs of events that differ in one number: a head, the number (u64, big-endian), what follows it, CRC-32C. */
#ifndef DURAMEN_EVENTS_H
#define DURAMEN_EVENTS_H

#include "bytes.h"

/* Writes `count` events with the numbers from `start` on, one after another; the checksum (u32, big-endian) covers an
 * event from `covered_from` on. The caller has checked that covered_from <= head_bytes, that the numbers fit and that
 * `out` has count * (head_bytes + 8 + rest_bytes + 4) bytes. */
void duramen_encode_run(const uint8_t *head, int64_t head_bytes, int64_t covered_from, uint64_t start, int64_t count,
                        const uint8_t *rest, int64_t rest_bytes, uint8_t *out);

#endif

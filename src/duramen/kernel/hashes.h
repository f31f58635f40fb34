/* Murmur2, 32 bits, with the seed that Kafka's producers use to choose a partition. */
#ifndef DURAMEN_HASHES_H
#define DURAMEN_HASHES_H

#include "bytes.h"

uint32_t duramen_murmur2(const uint8_t *data, int64_t data_bytes);

/* The hash of every row data[offsets[i] .. offsets[i + 1]). Returns count, or -1 - row for the first row that lies
 * outside of the data. */
int64_t duramen_murmur2_rows(const uint8_t *data, int64_t data_bytes, const int32_t *offsets, int64_t count,
                             uint32_t *hashes);

#endif

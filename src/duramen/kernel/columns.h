/* Arrow buffers: values that lie anywhere in a buffer, side by side. */
#ifndef DURAMEN_COLUMNS_H
#define DURAMEN_COLUMNS_H

#include "bytes.h"

/* Copies row i's bytes buf[positions[i] .. + lengths[i]) one after another and fills Arrow's count + 1 offsets.
 * Returns the bytes copied, or -1 - row for the first row that lies outside of a buffer. */
int64_t duramen_gather(const uint8_t *buf, int64_t buf_bytes, const int64_t *positions, const uint32_t *lengths,
                       int64_t count, int32_t *offsets, uint8_t *data, int64_t data_bytes);

#endif

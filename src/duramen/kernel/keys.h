/* Keys by their hash: 128-bit SipHash-2-4 of every row, and a table of the newest offset of every hash. */
#ifndef DURAMEN_KEYS_H
#define DURAMEN_KEYS_H

#include "bytes.h"

/* Two words per row of data[offsets[i] .. offsets[i + 1]). Returns count, or -1 - row for the first row that lies
 * outside of the data. */
int64_t duramen_siphash_rows(const uint8_t *data, int64_t data_bytes, const int32_t *offsets, int64_t count,
                             uint64_t key0, uint64_t key1, uint64_t *hashes);

/* The table has `slots` entries of three words: the hash, and the offset + 1 (0: free). Puts rows in until `most`
 * entries are used; *used goes along. Returns how many rows are in: fewer than count where the table is full. */
int64_t duramen_keep_newest(uint64_t *table, int64_t slots, int64_t most, int64_t *used, const uint64_t *hashes,
                            const int64_t *offsets, int64_t count);

#endif

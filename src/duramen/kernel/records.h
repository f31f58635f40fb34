/* Kafka's records, encoded into batches: see batches.h for the bytes of a batch.
 *
 *   record           numbers are zigzag varints
 *     length         of what follows
 *     attributes     i8, 0
 *     time_delta     from the batch's base_timestamp
 *     offset_delta   from the batch's base_offset
 *     key_length     -1 for null; key
 *     value_length   -1 for null; value
 *     headers        how many; then for each: key_length, key, value_length (-1 for null), value
 */
#ifndef DURAMEN_RECORDS_H
#define DURAMEN_RECORDS_H

#include "batches.h"

/* Where the bytes lie that the positions of record_columns and header_columns name. */
typedef struct {
    const uint8_t *data;
    int64_t size_bytes;
} record_field;

typedef struct {
    record_field keys, values, header_keys, header_values;
} record_fields;

/* Writes the batches one after another, each with its header, its records and its checksum. Takes the records in order:
 * as many for each batch as `records` says. Fills in `position` (`base_position` is that of `out`), `data_position`,
 * `data_length`, `visible` and `magic`. Returns the bytes written, or -1 - the number of the first batch that does not
 * fit into `out`, or whose numbers do not fit into their fields. */
int64_t duramen_encode_batches(uint8_t *out, int64_t capacity, batch_columns *batches, const record_columns *records,
                               const header_columns *headers, const record_fields *fields, int64_t base_position);

/* Writes one batch with one record. `batch` has one row and is treated as by `duramen_encode_batches`, which also sets
 * `records` to 1. `fields` holds the encoded key and after it the encoded headers, with their count; or nothing for
 * neither. Returns the bytes, or -1 where something does not fit. */
int64_t duramen_encode_record(uint8_t *out, int64_t capacity, batch_columns *batch, const record_field *value,
                              const record_field *fields, int64_t base_position);

#endif

#include "records.h"

static inline uint64_t zigzag(int64_t number) { return ((uint64_t)number << 1) ^ (0 - ((uint64_t)number >> 63)); }

static inline int64_t varint_bytes(uint64_t number)
{
    int64_t bytes = 1;
    for (; number >= 0x80; number >>= 7) bytes++;
    return bytes;
}

static inline uint8_t *put_varint(uint8_t *at, uint64_t number)
{
    for (; number >= 0x80; number >>= 7) *at++ = (uint8_t)(number | 0x80);
    *at++ = (uint8_t)number;
    return at;
}

/* The size of a length and its bytes; -1 where they lie outside of the field, or a length is not allowed. */
static inline int64_t field_bytes(const record_field *field, int64_t position, uint32_t length, int allows_null)
{
    if (length == NULL_LENGTH) return allows_null ? 1 : -1;
    if (length > INT32_MAX || position < 0 || position > field->size_bytes) return -1;
    if ((int64_t)length > field->size_bytes - position) return -1;
    return varint_bytes(zigzag(length)) + length;
}

static inline uint8_t *put_field(uint8_t *at, const record_field *field, int64_t position, uint32_t length)
{
    if (length == NULL_LENGTH) return put_varint(at, zigzag(-1));
    at = put_varint(at, zigzag(length));
    if (length > 0) memcpy(at, field->data + position, length);
    return at + length;
}

/* Records that are encoded: the next one, and its first header. */
typedef struct {
    const record_columns *records;
    const header_columns *headers;
    const record_fields *fields;
    int64_t row, header;
} record_source;

static inline int64_t headers_bytes(const record_source *from, uint32_t count)
{
    int64_t total = varint_bytes(zigzag(count));
    if (count > INT32_MAX || (int64_t)count > from->headers->count - from->header) return -1;
    for (int64_t i = from->header; i < from->header + count; i++) {
        const header_columns *h = from->headers;
        const int64_t key = field_bytes(&from->fields->header_keys, h->key_position[i], h->key_length[i], 0);
        const int64_t value = field_bytes(&from->fields->header_values, h->value_position[i], h->value_length[i], 1);
        if (key < 0 || value < 0) return -1;
        total += key + value;
    }
    return total;
}

/* The record at `from->row`, with these deltas. Returns where it ends, or NULL where it does not fit. */
static uint8_t *put_record(uint8_t *at, const uint8_t *end, record_source *from, uint64_t time_delta,
                           int64_t offset_delta)
{
    const record_columns *r = from->records;
    const record_fields *f = from->fields;
    const int64_t row = from->row;
    const uint64_t time = zigzag((int64_t)time_delta), offset = zigzag(offset_delta);
    const int64_t key = field_bytes(&f->keys, r->key_position[row], r->key_length[row], 1);
    const int64_t value = field_bytes(&f->values, r->value_position[row], r->value_length[row], 1);
    const int64_t headers = headers_bytes(from, r->headers[row]);
    if (key < 0 || value < 0 || headers < 0) return NULL;
    const int64_t length = 1 + varint_bytes(time) + varint_bytes(offset) + key + value + headers;
    if (length > INT32_MAX || length + varint_bytes(zigzag(length)) > end - at) return NULL;
    at = put_varint(at, zigzag(length));
    *at++ = 0;
    at = put_varint(put_varint(at, time), offset);
    at = put_field(at, &f->keys, r->key_position[row], r->key_length[row]);
    at = put_field(at, &f->values, r->value_position[row], r->value_length[row]);
    at = put_varint(at, zigzag(r->headers[row]));
    for (uint32_t i = 0; i < r->headers[row]; i++, from->header++) {
        const header_columns *h = from->headers;
        at = put_field(at, &f->header_keys, h->key_position[from->header], h->key_length[from->header]);
        at = put_field(at, &f->header_values, h->value_position[from->header], h->value_length[from->header]);
    }
    from->row++;
    return at;
}

static uint8_t *put_records(uint8_t *at, const uint8_t *end, record_source *from, const batch_columns *b, int64_t i)
{
    int64_t before = -1;
    const int64_t last_delta = b->last_offset[i] - b->base_offset[i];
    for (uint32_t n = 0; n < b->records[i] && at != NULL; n++) {
        const int64_t offset = from->records->offset[from->row];
        const uint64_t time_delta = (uint64_t)from->records->timestamp[from->row] - (uint64_t)b->base_timestamp[i];
        const int64_t delta = offset < b->base_offset[i] ? -1 : offset - b->base_offset[i];
        if (delta <= before || delta > last_delta) return NULL;
        at = put_record(at, end, from, time_delta, delta);
        before = delta;
    }
    return at;
}

static inline int header_fits(const batch_columns *b, int64_t i)
{
    return b->base_offset[i] >= 0 && b->last_offset[i] >= b->base_offset[i] &&
           b->last_offset[i] - b->base_offset[i] <= INT32_MAX && b->leader_epoch[i] >= -1 &&
           b->leader_epoch[i] <= INT32_MAX && b->producer_epoch[i] >= -1 && b->producer_epoch[i] <= INT16_MAX &&
           b->base_sequence[i] >= -1 && b->base_sequence[i] <= INT32_MAX && b->attributes[i] <= UINT16_MAX &&
           b->records[i] <= INT32_MAX;
}

static void put_header(uint8_t *header, int64_t size, const batch_columns *b, int64_t i)
{
    store64(header, (uint64_t)b->base_offset[i], 1);
    store32(header + 8, (uint32_t)(size - BATCH_PREFIX_BYTES), 1);
    store32(header + 12, (uint32_t)b->leader_epoch[i], 1);
    header[BATCH_MAGIC_AT] = 2;
    store_uint(header + 21, b->attributes[i], 2, 1);
    store32(header + 23, (uint32_t)(b->last_offset[i] - b->base_offset[i]), 1);
    store64(header + 27, (uint64_t)b->base_timestamp[i], 1);
    store64(header + 35, (uint64_t)b->max_timestamp[i], 1);
    store64(header + 43, (uint64_t)b->producer_id[i], 1);
    store_uint(header + 51, (uint64_t)b->producer_epoch[i], 2, 1);
    store32(header + 53, (uint32_t)b->base_sequence[i], 1);
    store32(header + 57, b->records[i], 1);
    store32(header + 17, duramen_crc32c(0, header + 21, (size_t)(size - 21)), 1);
}

static void finish_batch(uint8_t *header, const uint8_t *end, batch_columns *b, int64_t i, int64_t position)
{
    put_header(header, end - header, b, i);
    b->position[i] = position;
    b->data_position[i] = position + BATCH_HEADER_BYTES;
    b->data_length[i] = (uint32_t)(end - header - BATCH_HEADER_BYTES);
    b->visible[i] = b->attributes[i] & BATCH_CONTROL ? 0 : b->records[i];
    b->magic[i] = 2;
}

int64_t duramen_encode_batches(uint8_t *out, int64_t capacity, batch_columns *batches, const record_columns *records,
                               const header_columns *headers, const record_fields *fields, int64_t base_position)
{
    record_source from = {records, headers, fields, 0, 0};
    uint8_t *at = out;
    const uint8_t *end = out + capacity;

    for (int64_t i = 0; i < batches->count; i++) {
        if (!header_fits(batches, i) || end - at < BATCH_HEADER_BYTES) return -1 - i;
        if ((int64_t)batches->records[i] > records->count - from.row) return -1 - i;
        uint8_t *header = at;
        at = put_records(at + BATCH_HEADER_BYTES, end, &from, batches, i);
        if (at == NULL || at - header > INT32_MAX) return -1 - i;
        finish_batch(header, at, batches, i, base_position + (header - out));
    }
    return at - out;
}

/* The bytes of the encoded key, after which its headers follow; -1 where it does not lie within the fields. */
static int64_t key_field_bytes(const record_field *fields)
{
    uint64_t raw = 0;
    int64_t at = 0;
    for (int shift = 0;; shift += 7) {
        if (at >= fields->size_bytes || shift > 28) return -1;
        const uint8_t byte = fields->data[at++];
        raw |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) break;
    }
    if (raw == zigzag(-1)) return at;
    const int64_t length = (int64_t)(raw >> 1);
    if ((raw & 1) != 0 || length > fields->size_bytes - at) return -1;
    return at + length;
}

int64_t duramen_encode_record(uint8_t *out, int64_t capacity, batch_columns *batch, const record_field *value,
                              const record_field *fields, int64_t base_position)
{
    static const uint8_t nothing[] = {1, 0}; /* no key; no headers */
    const record_field plain = {nothing, sizeof nothing}, *given = fields->size_bytes > 0 ? fields : &plain;
    const int64_t key = key_field_bytes(given);

    *batch->records = 1;
    if (!header_fits(batch, 0) || key < 0 || value->size_bytes > INT32_MAX) return -1;
    const int64_t length = 3 + given->size_bytes + varint_bytes(zigzag(value->size_bytes)) + value->size_bytes;
    if (length > INT32_MAX || BATCH_HEADER_BYTES + varint_bytes(zigzag(length)) + length > capacity) return -1;
    uint8_t *at = put_varint(out + BATCH_HEADER_BYTES, zigzag(length));
    memset(at, 0, 3); /* attributes, time_delta, offset_delta */
    memcpy(at + 3, given->data, (size_t)key);
    at = put_field(at + 3 + key, value, 0, (uint32_t)value->size_bytes);
    memcpy(at, given->data + key, (size_t)(given->size_bytes - key));
    at += given->size_bytes - key;
    finish_batch(out, at, batch, 0, base_position);
    return at - out;
}

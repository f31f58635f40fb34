#include "batches.h"

static inline int32_t signed32(const uint8_t *p) { return (int32_t)load32(p, 1); }

/* What the CRC-32C of a batch does not cover may be damaged: a version that nobody knows counts only where the rest
 * continues the log. */
static inline int64_t unknown_magic(const uint8_t *header, int64_t remaining, int64_t previous_offset)
{
    const int32_t length = signed32(header + 8);
    const int continues = load64(header, 1) == (uint64_t)previous_offset + 1 && length > 0 &&
                          length <= remaining - BATCH_PREFIX_BYTES;
    return continues && header[BATCH_MAGIC_AT] < 16 ? STOP_BAD_VERSION : STOP_BAD_MAGIC;
}

static inline void parse_message(const uint8_t *header, int64_t position, batch *out)
{
    const int has_time = out->magic == 1;
    out->last_offset = out->base_offset;
    out->base_timestamp = has_time ? (int64_t)load64(header + 18, 1) : -1;
    out->max_timestamp = out->base_timestamp;
    out->producer_id = out->producer_epoch = out->base_sequence = out->leader_epoch = -1;
    out->data_position = position + (has_time ? 26 : 18);
    out->records = 1;
    out->attributes = header[17];
}

static inline int64_t parse_batch(const uint8_t *header, int64_t position, batch *out)
{
    const int32_t last_delta = signed32(header + 23);
    if (last_delta < 0 || out->base_offset > INT64_MAX - last_delta) return STOP_BAD_RANGE;
    out->last_offset = out->base_offset + last_delta;
    out->base_timestamp = (int64_t)load64(header + 27, 1);
    out->max_timestamp = (int64_t)load64(header + 35, 1);
    out->producer_id = (int64_t)load64(header + 43, 1);
    out->producer_epoch = (int16_t)load16be(header + 51);
    out->base_sequence = signed32(header + 53);
    out->leader_epoch = signed32(header + 12);
    out->data_position = position + BATCH_HEADER_BYTES;
    out->records = load32(header + 57, 1);
    out->attributes = load16be(header + 21);
    return STOP_END;
}

/* Everything about the batch or message at `position` that its header says. */
static inline int64_t parse_header(const uint8_t *buf, int64_t position, int64_t end, int64_t previous_offset,
                                   batch *out)
{
    const int64_t remaining = end - position;
    const uint8_t *header = buf + position;

    if (remaining <= BATCH_MAGIC_AT) return STOP_SHORT_HEADER;
    out->magic = header[BATCH_MAGIC_AT];
    if (out->magic > 2) return unknown_magic(header, remaining, previous_offset);
    const int64_t length = signed32(header + 8);
    if (length < (out->magic == 2 ? 49 : out->magic == 1 ? 22 : 14)) return STOP_BAD_LENGTH;
    if (length > remaining - BATCH_PREFIX_BYTES) return STOP_SHORT_BODY;
    out->position = position;
    out->next = position + BATCH_PREFIX_BYTES + length;
    out->base_offset = (int64_t)load64(header, 1);
    if (out->base_offset < 0) return STOP_BAD_RANGE;
    if (out->magic < 2) {
        parse_message(header, position, out);
    } else {
        const int64_t stop = parse_batch(header, position, out);
        if (stop != STOP_END) return stop;
    }
    out->data_length = (uint32_t)(out->next - out->data_position);
    return out->base_offset <= previous_offset ? STOP_BAD_ORDER : STOP_END;
}

static inline int checksum_fits(const uint8_t *buf, const batch *b)
{
    if (b->magic < 2)
        return duramen_crc32(0, buf + b->position + 16, (size_t)(b->next - b->position - 16)) ==
               load32(buf + b->position + 12, 1);
    return duramen_crc32c(0, buf + b->position + 21, (size_t)(b->next - b->position - 21)) ==
           load32(buf + b->position + 17, 1);
}

/* A length of a message: what follows it, or 0 with the length -1 for null. */
static inline int pass_field(const uint8_t *buf, int64_t *at, int64_t end)
{
    if (end - *at < 4) return 0;
    const int32_t length = signed32(buf + *at);
    *at += 4;
    if (length < -1 || length > end - *at) return 0;
    *at += length < 0 ? 0 : length;
    return 1;
}

/* Whether the numbers of the header fit to each other, and the fields of a message fill it exactly. */
static inline int adds_up(const uint8_t *buf, const batch *b)
{
    if (b->magic < 2) {
        int64_t at = b->data_position;
        return pass_field(buf, &at, b->next) && pass_field(buf, &at, b->next) && at == b->next;
    }
    if ((int64_t)b->records > b->last_offset - b->base_offset + 1) return 0;
    if (b->attributes & BATCH_CODEC) return 1;
    return b->records == 0 ? b->data_length == 0 : b->records <= b->data_length / LEAST_RECORD_BYTES;
}

static inline void fill(batch_columns *out, int64_t row, const batch *b, uint32_t visible)
{
    out->base_offset[row] = b->base_offset;
    out->last_offset[row] = b->last_offset;
    out->base_timestamp[row] = b->base_timestamp;
    out->max_timestamp[row] = b->max_timestamp;
    out->producer_id[row] = b->producer_id;
    out->producer_epoch[row] = b->producer_epoch;
    out->base_sequence[row] = b->base_sequence;
    out->leader_epoch[row] = b->leader_epoch;
    out->position[row] = b->position;
    out->data_position[row] = b->data_position;
    out->data_length[row] = b->data_length;
    out->records[row] = b->records;
    out->visible[row] = visible;
    out->attributes[row] = b->attributes;
    out->magic[row] = b->magic;
}

static inline int read_varlong(const uint8_t *buf, int64_t *at, int64_t end, int most_shift, uint64_t *out)
{
    uint64_t value = 0;
    if (*at < end && !(buf[*at] & 0x80)) { /* most numbers are small */
        *out = buf[(*at)++];
        return 1;
    }
    for (int shift = 0; shift <= most_shift; shift += 7) {
        if (*at >= end) return 0;
        const uint8_t byte = buf[(*at)++];
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *out = value;
            return 1;
        }
    }
    return 0;
}

static inline int read_signed64(const uint8_t *buf, int64_t *at, int64_t end, uint64_t *out)
{
    uint64_t raw;
    if (!read_varlong(buf, at, end, 63, &raw)) return 0;
    *out = (raw >> 1) ^ (0 - (raw & 1));
    return 1;
}

static inline int read_signed32(const uint8_t *buf, int64_t *at, int64_t end, int64_t *out)
{
    uint64_t raw;
    if (!read_varlong(buf, at, end, 28, &raw)) return 0;
    const uint32_t low = (uint32_t)raw;
    *out = (int32_t)((low >> 1) ^ (0 - (low & 1)));
    return 1;
}

typedef struct {
    int64_t key_position, value_position;
    uint32_t key_length, value_length;
} header;

/* A length and what it counts; -1 stands for null, where that is allowed. */
static inline int read_field(const uint8_t *buf, int64_t *at, int64_t end, int64_t least, int64_t *position,
                             uint32_t *length)
{
    int64_t size;
    if (!read_signed32(buf, at, end, &size) || size < least || size > end - *at) return 0;
    *position = *at;
    *length = size < 0 ? NULL_LENGTH : (uint32_t)size;
    *at += size < 0 ? 0 : size;
    return 1;
}

static inline int read_header(const uint8_t *buf, int64_t *at, int64_t end, header *out)
{
    return read_field(buf, at, end, 0, &out->key_position, &out->key_length) &&
           read_field(buf, at, end, -1, &out->value_position, &out->value_length);
}

/* The batch that records belong to, and the offset of the one before. */
typedef struct {
    int64_t base_offset, last_delta, base_timestamp, delta;
} record_batch;

/* The record at `*at`. */
static inline int read_record(const uint8_t *buf, int64_t *at, int64_t end, int walk_headers, record_batch *in,
                              record_columns *out, int64_t row)
{
    const int64_t position = *at;
    int64_t length, delta, headers;
    uint64_t time_delta;
    header pair, h;

    if (!read_signed32(buf, at, end, &length) || length < 1 || length > end - *at) return 0;
    const int64_t guess = *at + length - position; /* the next one is likely to be as long */
    if (guess < end - *at - length) __builtin_prefetch(buf + *at + length + guess);
    end = *at + length;
    (*at)++; /* the attributes, of which none is defined */
    if (!read_signed64(buf, at, end, &time_delta) || !read_signed32(buf, at, end, &delta)) return 0;
    if (delta <= in->delta || delta > in->last_delta) return 0;
    in->delta = delta;
    if (!read_field(buf, at, end, -1, &pair.key_position, &pair.key_length)) return 0;
    if (!read_field(buf, at, end, -1, &pair.value_position, &pair.value_length)) return 0;
    if (!read_signed32(buf, at, end, &headers) || headers < 0 || headers > (end - *at) / 2) return 0;
    const int64_t headers_position = *at;
    if (headers > 0 && !walk_headers) *at = end;
    for (int64_t i = 0; i < headers && walk_headers; i++)
        if (!read_header(buf, at, end, &h)) return 0;
    if (*at != end) return 0;
    out->offset[row] = in->base_offset + delta;
    out->timestamp[row] = (int64_t)((uint64_t)in->base_timestamp + time_delta);
    out->position[row] = position;
    out->key_position[row] = pair.key_position;
    out->key_length[row] = pair.key_length;
    out->value_position[row] = pair.value_position;
    out->value_length[row] = pair.value_length;
    out->headers_position[row] = headers_position;
    out->headers[row] = (uint32_t)headers;
    return 1;
}

/* The value of a row into the room for values, from `*at` on. */
static inline int copy_value(const uint8_t *buf, const record_columns *columns, int64_t row,
                             const duramen_value_room *values, int64_t *at)
{
    const uint32_t stated = columns->value_length[row];
    const int64_t length = stated == NULL_LENGTH ? 0 : (int64_t)stated;
    if (length > bytes_for_values(values) - *at) return 0;
    if (length > 0) memcpy(values->data + *at, buf + columns->value_position[row], (size_t)length);
    *at += length;
    values->offsets[row + 1] = (int32_t)*at;
    return 1;
}

/* Records that fill the bytes from `at` to `end`, into the rows from `row` on. */
static inline int read_range(const uint8_t *buf, int64_t at, int64_t end, int64_t records, int walk_headers,
                             record_batch in, record_columns *out, int64_t row, const duramen_value_room *values,
                             int64_t *copied)
{
    for (int64_t n = row; n < row + records; n++) {
        if (!read_record(buf, &at, end, walk_headers, &in, out, n)) return 0;
        if (values != NULL && !copy_value(buf, out, n, values, copied)) return 0;
    }
    return at == end;
}

/* Whether the records of a batch fit into what is left, as far as its header says. */
static inline int has_room(const taken_records *taken, const batch *b)
{
    if (taken->count < 0) return 1;
    return (int64_t)b->records <= taken->records.count - taken->count &&
           (int64_t)b->data_length <= bytes_for_values(&taken->values) - taken->copied;
}

/* Now, while the checksum has the bytes of the batch in the nearest cache. */
static inline void take_records(const uint8_t *buf, const batch *b, taken_records *taken)
{
    const record_batch in = {b->base_offset, b->last_offset - b->base_offset, b->base_timestamp, -1};
    const int64_t row = taken->count, records = (int64_t)b->records;
    const int fits = has_room(taken, b);

    taken->count = -1;
    if (b->magic < 2 || b->attributes & BATCH_CODEC || !fits) return;
    if (!read_range(buf, b->data_position, b->next, records, 1, in, &taken->records, row, &taken->values,
                    &taken->copied))
        return;
    taken->count = row + records;
}

duramen_scan_end duramen_scan_batches(const uint8_t *buf, int64_t position, int64_t end, batch_columns *out,
                                      int64_t max_bytes, int64_t max_records, int64_t previous_offset, int verify,
                                      duramen_digests *digests, taken_records *taken)
{
    duramen_digest_ahead ahead = {.until = position};
    int64_t bytes_left = max_bytes < 0 ? 0 : max_bytes;
    int64_t records_left = max_records < 0 ? 0 : max_records;
    int64_t count = 0;
    int64_t stop = STOP_END;
    batch b;

    if (digests != NULL) ahead.sums = *digests;
    while (position < end) {
        if (count == out->count) {
            stop = STOP_LIMIT;
            break;
        }
        if (digests != NULL) digest_ahead(&ahead, buf, position, end);
        if (only_zeros(buf, position, end)) {
            stop = STOP_ZEROS;
            break;
        }
        stop = parse_header(buf, position, end, previous_offset, &b);
        if (stop != STOP_END) break;
        const uint32_t visible = b.magic == 2 && b.attributes & BATCH_CONTROL ? 0 : b.records;
        const int64_t size = b.next - position;
        if (count > 0 && (size > bytes_left || (int64_t)visible > records_left)) {
            stop = STOP_LIMIT;
            break;
        }
        if (count > 0 && taken != NULL && visible > 0 && !has_room(taken, &b)) {
            stop = STOP_LIMIT;
            break;
        }
        if (verify && !checksum_fits(buf, &b)) {
            stop = STOP_BAD_CHECKSUM;
            break;
        }
        if (!adds_up(buf, &b)) {
            stop = STOP_BAD_ENTRIES;
            break;
        }
        if (taken != NULL && taken->count >= 0 && visible > 0) take_records(buf, &b, taken);
        fill(out, count++, &b, visible);
        bytes_left -= size;
        records_left -= visible;
        previous_offset = b.last_offset;
        position = b.next;
    }
    if (digests != NULL) *digests = digest_up_to(&ahead, buf, position);
    return (duramen_scan_end){count, position, stop, previous_offset};
}

int64_t duramen_find_batch(const uint8_t *buf, int64_t position, int64_t end, int64_t previous_offset)
{
    duramen_search search = begin_search(position, end);
    batch b;

    for (; end - position > BATCH_MAGIC_AT; position++) {
        search_on(&search, buf, position);
        if (buf[position + BATCH_MAGIC_AT] > 2 || buf[position] != 0) continue;
        if (parse_header(buf, position, end, previous_offset, &b) != STOP_END || !adds_up(buf, &b)) continue;
        /* No checksum covers the offset. Within a segment the distance fits into 31 bits. */
        if ((uint64_t)b.base_offset - (uint64_t)previous_offset - 1 > UINT64_C(1) << 32) continue;
        search.budget -= b.next - position;
        if (checksum_fits(buf, &b)) return position;
        if (search.budget < 0) return DURAMEN_GAVE_UP;
    }
    return DURAMEN_NOT_FOUND;
}

int64_t duramen_scan_records(const record_sources *sources, const record_ranges *ranges, record_columns *out,
                             int walk_headers, const duramen_value_room *values)
{
    int64_t total = 0, copied = 0;

    if (values != NULL) values->offsets[0] = 0;
    for (int64_t i = 0; i < ranges->count; i++) {
        const int source = ranges->in_plain[i] != 0;
        const uint8_t *buf = sources->bytes[source];
        const int64_t buf_bytes = sources->size_bytes[source];
        const int64_t at = ranges->position[i];
        const int64_t length = ranges->length[i], records = ranges->records[i], row = ranges->row[i];
        const int64_t base = ranges->base_offset[i], last = ranges->last_offset[i];
        if (at < 0 || at > buf_bytes || length < 0 || length > buf_bytes - at) return -1 - i;
        if (records < 0 || row < 0 || row > out->count || records > out->count - row) return -1 - i;
        if (base < 0 || last < base || (values != NULL && row != total)) return -1 - i;
        const record_batch in = {base, last - base, ranges->base_timestamp[i], -1};
        if (!read_range(buf, at, at + length, records, walk_headers, in, out, row, values, &copied)) return -1 - i;
        total += records;
    }
    return total;
}

int64_t duramen_scan_headers(const uint8_t *buf, int64_t buf_bytes, const int64_t *positions, const uint32_t *counts,
                             int64_t rows, header_columns *out)
{
    int64_t count = 0;
    header h;

    for (int64_t row = 0; row < rows; row++) {
        int64_t at = positions[row];
        if (at < 0 || at > buf_bytes || (int64_t)counts[row] > out->count - count) return -1 - row;
        for (uint32_t i = 0; i < counts[row]; i++, count++) {
            if (!read_header(buf, &at, buf_bytes, &h)) return -1 - row;
            out->key_position[count] = h.key_position;
            out->key_length[count] = h.key_length;
            out->value_position[count] = h.value_position;
            out->value_length[count] = h.value_length;
        }
    }
    return count;
}

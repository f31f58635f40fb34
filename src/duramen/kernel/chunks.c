#include "chunks.h"

/* Everything about the chunk at `position` that its header says. */
static inline int64_t parse_header(const uint8_t *buf, int64_t position, int64_t end, int64_t previous_offset,
                                   chunk *out)
{
    const int64_t remaining = end - position;
    const uint8_t *header = buf + position;

    if (remaining < CHUNK_HEADER_BYTES) return STOP_SHORT_HEADER;
    if (header[0] >> 4 != 5) return STOP_BAD_MAGIC;
    if ((header[0] & 15) > 1) return STOP_BAD_VERSION;
    if (header[1] > CHUNK_SNAPSHOT) return STOP_BAD_FIELD;

    const uint32_t records = load32(header + 4, 1);
    const uint64_t chunk_id = load64(header + 24, 1);
    const uint64_t behind_first = records == 0 ? 0 : records - 1;
    if (chunk_id > (uint64_t)INT64_MAX - behind_first) return STOP_BAD_RANGE;

    const uint32_t data_length = load32(header + 36, 1);
    const uint32_t trailer_length = load32(header + 40, 1);
    const int64_t front = CHUNK_HEADER_BYTES + (int64_t)header[44];
    const int64_t size = front + (int64_t)data_length + (int64_t)trailer_length;
    if (size > remaining) return STOP_SHORT_BODY;
    if ((int64_t)chunk_id <= previous_offset) return STOP_BAD_ORDER;

    out->chunk_id = (int64_t)chunk_id;
    out->timestamp = (int64_t)load64(header + 8, 1);
    out->epoch = (int64_t)load64(header + 16, 1);
    out->position = position;
    out->data_position = position + front;
    out->next = position + size;
    out->data_length = data_length;
    out->trailer_length = trailer_length;
    out->records = records;
    out->entries = load16be(header + 2);
    out->chunk_type = header[1];
    out->inflated_bytes = 0;
    out->sub_batches = 0;
    out->tracking = 0;
    return STOP_END;
}

static inline int checksum_fits(const uint8_t *buf, const chunk *c)
{
    return duramen_crc32(0, buf + c->data_position, (size_t)c->data_length) == load32(buf + c->position + 32, 1);
}

#define JOIN_FROM 4096

/* The same, where the digests go over the data as well: one pass takes both, and the CRC-32 of the file is joined from
 * that of the data. */
static int checksum_fits_digested(const uint8_t *buf, const chunk *c, duramen_digest_ahead *ahead)
{
    if (c->data_length < JOIN_FROM) return checksum_fits(buf, c);
    duramen_digest_ahead a = *ahead;
    const duramen_digests before = digest_up_to(&a, buf, c->data_position);
    duramen_digests data = {before.crc32c, 0};
    duramen_digest(&data, buf + c->data_position, (size_t)c->data_length);
    if (data.crc32 != load32(buf + c->position + 32, 1)) return 0;
    const int64_t end = c->data_position + (int64_t)c->data_length;
    const duramen_digests sums = {data.crc32c, duramen_crc32_join(before.crc32, data.crc32, c->data_length)};
    *ahead = (duramen_digest_ahead){sums, sums, end, end};
    return 1;
}

static inline int64_t last_offset_of(const chunk *c) { return c->chunk_id - 1 + (int64_t)c->records; }

/* The entry at `at`, if all of it lies before `end`. The offset is left alone. */
static inline int parse_entry(const uint8_t *buf, int64_t at, int64_t end, chunk_entry *out)
{
    const int64_t remaining = end - at;
    if (remaining < SIMPLE_HEADER_BYTES) return 0;
    int64_t front = SIMPLE_HEADER_BYTES;
    if (buf[at] & 0x80) {
        if (remaining < SUB_BATCH_HEADER_BYTES) return 0;
        front = SUB_BATCH_HEADER_BYTES;
        out->sub_batch = buf[at];
        out->records = load16be(buf + at + 1);
        out->uncompressed_length = load32(buf + at + 3, 1);
        out->value_length = load32(buf + at + 7, 1);
    } else {
        out->sub_batch = 0;
        out->records = 1;
        out->uncompressed_length = 0;
        out->value_length = load32(buf + at, 1);
    }
    if ((int64_t)out->value_length > remaining - front) return 0;
    out->value_position = at + front;
    out->next = at + front + (int64_t)out->value_length;
    return 1;
}

/* How many tracking blocks fill the range, or BAD_TRACKING. */
static uint32_t count_tracking(const uint8_t *buf, int64_t at, int64_t end, int snapshot)
{
    uint32_t count = 0;
    for (; at < end; count++) {
        if (end - at < 2) return BAD_TRACKING;
        const int64_t id_bytes = buf[at + 1];
        const int64_t value_bytes = snapshot && buf[at] == TRACKING_SEQUENCE ? 16 : 8;
        if (buf[at] > TRACKING_TIMESTAMP || id_bytes == 0 || end - at < 2 + id_bytes + value_bytes)
            return BAD_TRACKING;
        at += 2 + id_bytes + value_bytes;
    }
    return count;
}

/* A tracking delta of one empty entry stores nothing. It takes up the offsets of records that are missing, one or
 * many, so that the chunk ids of the log stay without a gap. */
static inline int is_filler(const chunk *c)
{
    return c->chunk_type == CHUNK_DELTA && c->entries == 1 && c->data_length == SIMPLE_HEADER_BYTES && c->records > 0;
}

/* Whether the entries fill the data section exactly and add up to what the header says; counts what is in them. */
static int walk_chunk(const uint8_t *buf, chunk *c)
{
    const int64_t data_end = c->data_position + (int64_t)c->data_length;
    int64_t at = c->data_position;
    int64_t inflated_bytes = 0;
    uint64_t records = 0;
    uint32_t sub_batches = 0;
    chunk_entry e;

    if (c->entries == 0) return 0;
    for (uint32_t i = 0; i < c->entries; i++) {
        if (!parse_entry(buf, at, data_end, &e)) return 0;
        records += e.records;
        if (e.sub_batch) {
            sub_batches++;
            if (e.sub_batch & 0x70) inflated_bytes += (int64_t)e.uncompressed_length;
        }
        at = e.next;
    }
    if (at != data_end || (records != c->records && !is_filler(c))) return 0;
    if (c->chunk_type == CHUNK_USER) {
        c->tracking = count_tracking(buf, data_end, c->next, 0);
    } else {
        /* A trailer here would be a wrong length that swallows the chunks after it. */
        if (c->entries != 1 || sub_batches != 0 || c->next != data_end) return 0;
        c->tracking = count_tracking(buf, e.value_position, data_end, c->chunk_type == CHUNK_SNAPSHOT);
    }
    c->sub_batches = sub_batches;
    c->inflated_bytes = inflated_bytes;
    return 1;
}

static inline void fill(chunk_columns *out, int64_t row, const chunk *c)
{
    out->chunk_id[row] = c->chunk_id;
    out->timestamp[row] = c->timestamp;
    out->epoch[row] = c->epoch;
    out->position[row] = c->position;
    out->data_position[row] = c->data_position;
    out->inflated_bytes[row] = c->inflated_bytes;
    out->data_length[row] = c->data_length;
    out->trailer_length[row] = c->trailer_length;
    out->records[row] = c->records;
    out->entries[row] = c->entries;
    out->chunk_type[row] = c->chunk_type;
    out->sub_batches[row] = c->sub_batches;
    out->tracking[row] = c->tracking;
}

duramen_scan_end duramen_scan_chunks(const uint8_t *buf, int64_t position, int64_t end, chunk_columns *out,
                                     int64_t max_bytes, int64_t max_records, int64_t previous_offset, int verify,
                                     duramen_digests *digests)
{
    duramen_digest_ahead ahead = {.until = position};
    int64_t bytes_left = max_bytes < 0 ? 0 : max_bytes;
    int64_t records_left = max_records < 0 ? 0 : max_records;
    int64_t count = 0;
    int64_t stop = STOP_END;
    chunk c;

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
        stop = parse_header(buf, position, end, previous_offset, &c);
        if (stop != STOP_END) break;

        /* The cheap limits first: a chunk that is left for the next call costs no checksum here, unless it is one that
         * unfolds to too much. */
        const int64_t user_records = c.chunk_type == CHUNK_USER ? (int64_t)c.records : 0;
        const int64_t size = c.next - position;
        if (count > 0 && (size > bytes_left || user_records > records_left)) {
            stop = STOP_LIMIT;
            break;
        }
        /* Reading in order is cheaper than the walk, which then finds the chunk in a cache. */
        duramen_digest_ahead accepted = ahead;
        const int fits = !verify || (digests == NULL ? checksum_fits(buf, &c) : checksum_fits_digested(buf, &c, &accepted));
        const int adds_up = walk_chunk(buf, &c);
        if (count > 0 && size + c.inflated_bytes > bytes_left) {
            stop = STOP_LIMIT;
            break;
        }
        if (!fits) {
            stop = STOP_BAD_CHECKSUM;
            break;
        }
        if (!adds_up) {
            stop = STOP_BAD_ENTRIES;
            break;
        }
        ahead = accepted;
        fill(out, count++, &c);
        bytes_left -= size + c.inflated_bytes;
        records_left -= user_records;
        previous_offset = last_offset_of(&c);
        position = c.next;
    }
    if (digests != NULL) *digests = digest_up_to(&ahead, buf, position);
    return (duramen_scan_end){count, position, stop, previous_offset};
}

static int64_t find_entry(const uint8_t *buf, const chunk *c, int64_t target, chunk_entry *hit)
{
    const int64_t data_end = c->data_position + (int64_t)c->data_length;
    int64_t offset = c->chunk_id;
    int64_t at = c->data_position;

    for (uint32_t i = 0; i < c->entries; i++) {
        if (!parse_entry(buf, at, data_end, hit)) break;
        if (target - offset < (int64_t)hit->records) {
            hit->offset = offset;
            return STOP_LIMIT;
        }
        offset += (int64_t)hit->records;
        at = hit->next;
    }
    return STOP_BAD_ENTRIES;
}

int64_t duramen_seek_chunk(const uint8_t *buf, int64_t position, int64_t end, int64_t target,
                           int64_t previous_offset, chunk *at, chunk_entry *hit)
{
    int64_t stop = STOP_END;
    chunk passed;
    int has_passed = 0;
    int64_t kept = position;

    hit->offset = -1;
    while (position < end) {
        if (position - kept > PASS_BYTES) {
            duramen_passed(buf + kept, buf + position);
            kept = position;
        }
        at->position = position;
        if (only_zeros(buf, position, end)) {
            stop = STOP_ZEROS;
            break;
        }
        stop = parse_header(buf, position, end, previous_offset, at);
        if (stop != STOP_END) {
            at->position = position;
            return stop;
        }
        if (at->chunk_id > target) {
            stop = STOP_LIMIT;
            break;
        }
        previous_offset = last_offset_of(at);
        if (target <= previous_offset) {
            if (!checksum_fits(buf, at)) return STOP_BAD_CHECKSUM;
            if (!walk_chunk(buf, at)) return STOP_BAD_ENTRIES;
            return at->chunk_type == CHUNK_USER ? find_entry(buf, at, target, hit) : STOP_LIMIT;
        }
        passed = *at;
        has_passed = 1;
        position = at->next;
        stop = STOP_END;
    }
    /* Nobody has that offset, unless the chunk before this place has lost count: no checksum covers its header. */
    at->position = position;
    if (has_passed && !walk_chunk(buf, &passed)) {
        at->position = passed.position;
        return STOP_BAD_ENTRIES;
    }
    return stop;
}

/* The magic is four bits, and a damaged chunk id still reads as a number: what is found must be plausible, too. From
 * 11 bytes a sub-batch can unfold into 65,535 records, so that many may be missing for every 11 bytes passed over;
 * 2^32 more are allowed for a gap that a conversion left. */
static inline int is_plausible(const chunk *c, int64_t passed_bytes, int64_t previous_offset)
{
    const uint64_t most = ((uint64_t)passed_bytes / SUB_BATCH_HEADER_BYTES + 1) * 65535 + (UINT64_C(1) << 32);
    return c->data_length > 0 && c->records > 0 && (uint64_t)c->chunk_id - (uint64_t)previous_offset - 1 <= most;
}

int64_t duramen_find_chunk(const uint8_t *buf, int64_t position, int64_t end, int64_t previous_offset)
{
    duramen_search search = begin_search(position, end);
    const int64_t start = position;
    chunk c;

    for (; end - position >= CHUNK_HEADER_BYTES; position++) {
        search_on(&search, buf, position);
        if ((buf[position] & 0xFE) != 0x50 || buf[position + 1] > CHUNK_SNAPSHOT) continue;
        if (parse_header(buf, position, end, previous_offset, &c) != STOP_END) continue;
        if (!is_plausible(&c, position - start, previous_offset)) continue;
        search.budget -= c.next - position;
        if (walk_chunk(buf, &c) && checksum_fits(buf, &c)) return position;
        if (search.budget < 0) return DURAMEN_GAVE_UP;
    }
    return DURAMEN_NOT_FOUND;
}

int64_t duramen_scan_entries(const uint8_t *buf, int64_t buf_bytes, const chunk_columns *chunks, entry_columns *out)
{
    int64_t count = 0;
    chunk_entry e;

    for (int64_t row = 0; row < chunks->count; row++) {
        if (chunks->chunk_type[row] != CHUNK_USER) continue;
        int64_t at = chunks->data_position[row];
        uint64_t offset = (uint64_t)chunks->chunk_id[row];
        if (at < 0 || at > buf_bytes || (int64_t)chunks->data_length[row] > buf_bytes - at) return -1 - row;
        if ((int64_t)chunks->entries[row] > out->count - count) return -1 - row;
        const int64_t data_end = at + (int64_t)chunks->data_length[row];
        for (uint32_t i = 0; i < chunks->entries[row]; i++) {
            if (!parse_entry(buf, at, data_end, &e)) return -1 - row;
            out->offset[count] = (int64_t)offset;
            out->timestamp[count] = chunks->timestamp[row];
            out->position[count] = at;
            out->value_position[count] = e.value_position;
            out->value_length[count] = e.value_length;
            out->sub_batch[count] = e.sub_batch;
            out->records[count] = e.records;
            out->uncompressed_length[count] = e.uncompressed_length;
            count++;
            offset += e.records;
            at = e.next;
        }
        if (at != data_end) return -1 - row;
    }
    return count;
}

int64_t duramen_scan_prefixed(const uint8_t *buf, int64_t position, int64_t end, int64_t count, int64_t *positions,
                              uint32_t *lengths)
{
    chunk_entry e;
    for (int64_t row = 0; row < count; row++) {
        if (!parse_entry(buf, position, end, &e) || e.sub_batch) return -1 - row;
        positions[row] = e.value_position;
        lengths[row] = e.value_length;
        position = e.next;
    }
    return position == end ? count : -1 - count;
}

static inline int64_t put_entry(uint8_t *out, int64_t capacity, const duramen_values *values, int64_t row)
{
    const uint8_t *value;
    int64_t length;
    if (!value_at(values, row, &value, &length) || length > INT32_MAX) return -1;
    if (SIMPLE_HEADER_BYTES + length > capacity) return -1;
    store32(out, (uint32_t)length, 1);
    if (length > 0) memcpy(out + SIMPLE_HEADER_BYTES, value, (size_t)length);
    return SIMPLE_HEADER_BYTES + length;
}

int64_t duramen_encode_entries(uint8_t *out, int64_t capacity, const duramen_values *values, int64_t base_position,
                               int64_t *positions)
{
    int64_t at = 0;
    for (int64_t row = 0; row < values->count; row++) {
        const int64_t size = put_entry(out + at, capacity - at, values, row);
        if (size < 0) return -1 - row;
        positions[row] = base_position + at;
        at += size;
    }
    return at;
}

int64_t duramen_split_chunks(const duramen_values *values, const uint8_t *breaks, int64_t max_bytes,
                             int64_t max_records, int64_t *starts)
{
    int64_t count = 0, records = 0, bytes = 0;

    for (int64_t row = 0; row < values->count; row++, records++) {
        const uint8_t *value;
        int64_t length;
        if (!value_at(values, row, &value, &length) || length > INT32_MAX) return -1 - row;
        length += SIMPLE_HEADER_BYTES;
        const int is_break = row > 0 && breaks != NULL && breaks[row - 1];
        if (row == 0 || is_break || records >= max_records || length > max_bytes - bytes) {
            starts[count++] = row;
            records = bytes = 0;
        }
        bytes += length;
    }
    return count;
}

enum { SUMMED_BYTES = 16384 };

int64_t duramen_encode_chunks(uint8_t *out, int64_t capacity, int version, chunk_columns *chunks,
                              const duramen_values *values, int64_t base_position)
{
    int64_t at = 0, row = 0;

    for (int64_t number = 0; number < chunks->count; number++) {
        const int64_t records = (int64_t)chunks->records[number];
        if (records == 0 || records > UINT16_MAX || records > values->count - row) return -1 - number;
        if (CHUNK_HEADER_BYTES > capacity - at) return -1 - number;
        uint8_t *header = out + at;
        const int64_t data_at = at + CHUNK_HEADER_BYTES;
        at = data_at;
        uint32_t checksum = 0;
        int64_t summed = data_at; /* in stretches that are still in the nearest cache */
        for (int64_t last = row + records; row < last; row++) {
            const int64_t size = put_entry(out + at, capacity - at, values, row);
            if (size < 0) return -1 - number;
            at += size;
            if (at - summed >= SUMMED_BYTES) {
                checksum = duramen_crc32(checksum, out + summed, (size_t)(at - summed));
                summed = at;
            }
        }
        checksum = duramen_crc32(checksum, out + summed, (size_t)(at - summed));
        if (at - data_at > (int64_t)UINT32_MAX) return -1 - number;
        const uint32_t data_length = (uint32_t)(at - data_at);

        memset(header, 0, CHUNK_HEADER_BYTES);
        header[0] = (uint8_t)(0x50 | version);
        store_uint(header + 2, (uint64_t)records, 2, 1);
        store32(header + 4, (uint32_t)records, 1);
        store64(header + 8, (uint64_t)chunks->timestamp[number], 1);
        store64(header + 16, (uint64_t)chunks->epoch[number], 1);
        store64(header + 24, (uint64_t)chunks->chunk_id[number], 1);
        store32(header + 32, checksum, 1);
        store32(header + 36, data_length, 1);

        chunks->position[number] = base_position + data_at - CHUNK_HEADER_BYTES;
        chunks->data_position[number] = base_position + data_at;
        chunks->inflated_bytes[number] = 0;
        chunks->data_length[number] = data_length;
        chunks->trailer_length[number] = 0;
        chunks->entries[number] = (uint32_t)records;
        chunks->chunk_type[number] = CHUNK_USER;
        chunks->sub_batches[number] = 0;
        chunks->tracking[number] = 0;
    }
    return row == values->count ? at : -1 - chunks->count;
}

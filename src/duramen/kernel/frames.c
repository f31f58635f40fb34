#include "frames.h"
#include "crc.h"

static inline uint32_t checksum_of(const frame_layout *layout, const uint8_t *data, int64_t len)
{
    return layout->checksum == CHECKSUM_CRC32C ? duramen_crc32c(0, data, (size_t)len)
                                               : duramen_crc32(0, data, (size_t)len);
}

/* Everything about the frame at `position` that can be said without its checksum. */
static inline int64_t parse_header(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                                   int64_t previous_offset, frame *out)
{
    const int big = (int)layout->big_endian;
    const int64_t remaining = end - position;
    const uint8_t *header = buf + position;

    if (remaining < layout->header_bytes) return STOP_SHORT_HEADER;
    for (int64_t i = 0; i < layout->const_count; i++) {
        const frame_const *c = &layout->consts[i];
        if (load_uint(header + c->position, c->width, big) != (uint64_t)c->value) return c->stop;
    }

    const uint32_t value_length = load32(header + layout->length_at, big);
    const uint32_t headers_length =
        layout->headers_length_at < 0 ? 0 : load32(header + layout->headers_length_at, big);
    if ((int64_t)value_length > layout->max_payload_bytes) return STOP_BAD_LENGTH;

    const uint64_t offset = load64(header + layout->offset_at, big);
    if (offset > (uint64_t)INT64_MAX) return STOP_BAD_RANGE;

    const int64_t size = layout->header_bytes + (int64_t)headers_length + (int64_t)value_length + layout->trailer_bytes;
    if (size > remaining) return STOP_SHORT_BODY;
    if ((int64_t)offset <= previous_offset) return STOP_BAD_ORDER;

    out->offset = (int64_t)offset;
    out->timestamp = layout->timestamp_at < 0 ? 0 : (int64_t)load64(header + layout->timestamp_at, big);
    out->flags = layout->flags_at < 0 ? 0 : load32(header + layout->flags_at, big);
    out->position = position;
    out->value_position = position + layout->header_bytes + (int64_t)headers_length;
    out->value_length = value_length;
    out->headers_length = headers_length;
    out->next = position + size;
    return STOP_END;
}

static inline int64_t check_frame(const uint8_t *buf, const frame_layout *layout, const frame *f)
{
    if (layout->checksum == CHECKSUM_NONE) return STOP_END;
    const int64_t at = layout->checksum_at < 0 ? f->next - 4 : f->position + layout->checksum_at;
    const int64_t from = f->position + layout->covered_from;
    const int64_t covered = f->value_position + (int64_t)f->value_length - from;
    return checksum_of(layout, buf + from, covered) == load32(buf + at, (int)layout->big_endian)
               ? STOP_END
               : STOP_BAD_CHECKSUM;
}

/* Bytes that are not a frame may still be the clean end: only zeros up to `end`. A header of zeros is tried
 * first even where it would parse, because a format without a magic number reads zeros as an empty record. */
static inline int no_frame_follows(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout)
{
    const int64_t remaining = end - position;
    const int64_t first = remaining < layout->header_bytes ? remaining : layout->header_bytes;
    return all_zero(buf + position, first) && all_zero(buf + position + first, remaining - first);
}

/* How many frames ahead a header is fetched. */
enum { AHEAD = 16 };

duramen_scan_end duramen_scan_frames(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                                     frame_columns *out, int64_t capacity, int64_t max_bytes,
                                     int64_t previous_offset, int verify, duramen_digests *digests,
                                     const duramen_value_room *values)
{
    const int64_t start = position;
    const int64_t room = bytes_for_values(values);
    int64_t at = 0;
    duramen_digest_ahead ahead = {.until = position};
    int64_t count = 0;
    int64_t stop = STOP_END;
    frame f = {0};

    if (values != NULL) values->offsets[0] = 0;
    if (digests != NULL) ahead.sums = *digests;
    while (position < end) {
        if (count == capacity) {
            stop = STOP_LIMIT;
            break;
        }
        if (digests != NULL) digest_ahead(&ahead, buf, position, end);
        if (buf[position] == 0 && no_frame_follows(buf, position, end, layout)) {
            stop = STOP_ZEROS;
            break;
        }
        stop = parse_header(buf, position, end, layout, previous_offset, &f);
        if (stop != STOP_END) break;
        if (count > 0 && f.next - start > max_bytes) {
            stop = STOP_LIMIT;
            break;
        }
        if (values != NULL && (int64_t)f.value_length > room - at) {
            stop = STOP_LIMIT;
            break;
        }
        if (verify && layout->checksum != CHECKSUM_NONE) {
            stop = check_frame(buf, layout, &f);
            if (stop != STOP_END) break;
        } else if (digests == NULL) {
            /* Where only headers are read, each waits for the length before it. Equal ones can be guessed. */
            const int64_t guess = AHEAD * (f.next - position);
            if (guess < end - position) __builtin_prefetch(buf + position + guess);
        }
        if (values != NULL) { /* now, while the checksum has the bytes in the nearest cache */
            if (f.value_length > 0) memcpy(values->data + at, buf + f.value_position, (size_t)f.value_length);
            at += (int64_t)f.value_length;
            values->offsets[count + 1] = (int32_t)at;
        }
        out->offset[count] = f.offset;
        out->timestamp[count] = f.timestamp;
        out->position[count] = f.position;
        out->value_position[count] = f.value_position;
        out->value_length[count] = f.value_length;
        out->headers_length[count] = f.headers_length;
        out->flags[count] = f.flags;
        count++;
        previous_offset = f.offset;
        position = f.next;
    }
    if (digests != NULL) *digests = digest_up_to(&ahead, buf, position);
    return (duramen_scan_end){count, position, stop, previous_offset};
}

int64_t duramen_seek_frame(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                           int64_t target, int64_t previous_offset, frame *out)
{
    int64_t kept = position;

    while (position < end) {
        if (position - kept > PASS_BYTES) {
            duramen_passed(buf + kept, buf + position);
            kept = position;
        }
        out->position = position;
        if (buf[position] == 0 && no_frame_follows(buf, position, end, layout)) return STOP_ZEROS;
        const int64_t stop = parse_header(buf, position, end, layout, previous_offset, out);
        if (stop != STOP_END) {
            out->position = position;
            return stop;
        }
        if (out->offset >= target) {
            const int64_t verdict = check_frame(buf, layout, out);
            return verdict == STOP_END ? STOP_LIMIT : verdict;
        }
        previous_offset = out->offset;
        position = out->next;
    }
    out->position = position;
    return STOP_END;
}

/* Without a checksum a header alone proves little: its successor must fit too. */
static int has_successor(const uint8_t *buf, int64_t end, const frame_layout *layout, const frame *f)
{
    frame next = {0};
    if (f->next == end || no_frame_follows(buf, f->next, end, layout)) return 1;
    return parse_header(buf, f->next, end, layout, f->offset, &next) == STOP_END && next.offset == f->offset + 1;
}

int64_t duramen_find_frame(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                           int64_t previous_offset)
{
    duramen_search search = begin_search(position, end);
    const int64_t start = position;
    frame f = {0};

    for (; end - position >= layout->header_bytes; position++) {
        search_on(&search, buf, position);
        if (layout->const_count > 0) {
            const frame_const *magic = &layout->consts[0];
            const uint8_t first = (uint8_t)(layout->big_endian ? (uint64_t)magic->value >> (8 * (magic->width - 1))
                                                               : (uint64_t)magic->value);
            const int64_t rest = end - position - layout->header_bytes + 1;
            const int64_t some = rest < PASS_BYTES ? rest : PASS_BYTES;
            const uint8_t *hit = memchr(buf + position + magic->position, first, (size_t)some);
            if (hit == NULL && some == rest) return DURAMEN_NOT_FOUND;
            if (hit == NULL) {
                position += some - 1;
                continue;
            }
            position = hit - buf - magic->position;
        }
        if (parse_header(buf, position, end, layout, previous_offset, &f) != STOP_END) continue;
        if (layout->checksum == CHECKSUM_NONE) {
            /* Zeros read as the empty record 0: they prove nothing. */
            if (all_zero(buf + position, layout->header_bytes)) continue;
            /* More records cannot be missing than the bytes that were passed over could hold. */
            const uint64_t most = (uint64_t)((position - start) / layout->header_bytes) + 1;
            if ((uint64_t)f.offset - (uint64_t)previous_offset - 1 > most) continue;
            search.budget -= layout->header_bytes;
            if (f.next < end && buf[f.next] == 0) search.budget -= end - f.next;
            if (has_successor(buf, end, layout, &f)) return position;
        } else {
            search.budget -= f.next - position;
            if (check_frame(buf, layout, &f) == STOP_END) return position;
        }
        if (search.budget < 0) return DURAMEN_GAVE_UP;
    }
    return DURAMEN_NOT_FOUND;
}

static void put_constants(uint8_t *header, const frame_layout *layout)
{
    memset(header, 0, (size_t)layout->header_bytes);
    for (int64_t i = 0; i < layout->const_count; i++) {
        const frame_const *c = &layout->consts[i];
        store_uint(header + c->position, (uint64_t)c->value, c->width, (int)layout->big_endian);
    }
}

int64_t duramen_encode_frames(uint8_t *out, int64_t capacity, const frame_layout *layout, frame_columns *rows,
                              const duramen_values *values, const duramen_values *headers, int64_t base_position)
{
    const int big = (int)layout->big_endian;
    int64_t at = 0;
    struct {
        uint8_t *at;
        const uint8_t *from;
        int64_t len;
    } late = {0};

    for (int64_t row = 0; row < values->count; row++) {
        const uint8_t *value, *blob = NULL;
        int64_t value_len, blob_len = 0;
        if (!value_at(values, row, &value, &value_len)) return -1 - row;
        foresee(values, row + 2);
        if (headers != NULL && !value_at(headers, row, &blob, &blob_len)) return -1 - row;
        if (value_len > layout->max_payload_bytes) return -1 - row;
        if (blob_len > 0 && layout->headers_length_at < 0) return -1 - row;
        const int64_t size = layout->header_bytes + blob_len + value_len + layout->trailer_bytes;
        if (size > capacity - at) return -1 - row;

        uint8_t *p = out + at;
        if (row == 0)
            put_constants(p, layout);
        else
            memcpy(p, out, (size_t)layout->header_bytes); /* all but the constants is written over */
        if (layout->checksum_at >= 0) store32(p + layout->checksum_at, 0, big);
        store64(p + layout->offset_at, (uint64_t)rows->offset[row], big);
        store32(p + layout->length_at, (uint32_t)value_len, big);
        if (layout->headers_length_at >= 0) store32(p + layout->headers_length_at, (uint32_t)blob_len, big);
        if (layout->timestamp_at >= 0) store64(p + layout->timestamp_at, (uint64_t)rows->timestamp[row], big);
        if (layout->flags_at >= 0) store32(p + layout->flags_at, rows->flags[row], big);

        uint8_t *body = p + layout->header_bytes + blob_len;
        if (blob_len > 0) memcpy(body - blob_len, blob, (size_t)blob_len);
        if (value_len > 0) memcpy(body, value, (size_t)value_len);
        if (layout->trailer_bytes == 4)
            store32(body + value_len, 0, big);
        else if (layout->trailer_bytes > 0)
            memset(body + value_len, 0, (size_t)layout->trailer_bytes);
        if (layout->checksum != CHECKSUM_NONE) {
            /* Bytes stored a moment ago are slow to load again. A value alone is summed up where it comes from; what
             * is summed up with its header waits until the next frame is written. */
            uint8_t *checksum_at = layout->checksum_at < 0 ? p + size - 4 : p + layout->checksum_at;
            const uint8_t *from = p + layout->covered_from;
            if (from == body) {
                store32(checksum_at, checksum_of(layout, value, value_len), big);
            } else {
                if (late.at != NULL) store32(late.at, checksum_of(layout, late.from, late.len), big);
                late.at = checksum_at;
                late.from = from;
                late.len = body + value_len - from;
            }
        }
        rows->position[row] = base_position + at;
        rows->value_position[row] = base_position + (body - out);
        rows->value_length[row] = (uint32_t)value_len;
        rows->headers_length[row] = (uint32_t)blob_len;
        at += size;
    }
    if (late.at != NULL) store32(late.at, checksum_of(layout, late.from, late.len), big);
    return at;
}

int64_t duramen_pick_strides(const int64_t *value_positions, const uint32_t *value_lengths, int64_t count,
                             int64_t trailer_bytes, int64_t stride_bytes, int64_t *counted_from, int64_t *picked)
{
    int64_t found = 0;

    for (int64_t row = 0; row < count; row++) {
        const int64_t end = value_positions[row] + (int64_t)value_lengths[row] + trailer_bytes;
        if (end - *counted_from < stride_bytes) continue;
        picked[found++] = row;
        *counted_from = end;
    }
    return found;
}

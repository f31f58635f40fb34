#include "piece_rows.h"

#include <stdlib.h>

#include "bodies.h"
#include "columns.h"
#include "slots.h"
#include "text.h"

#define GROUPS 4096 /* chunks or batches of a scan */
#define APPEND_TIME 8
#define MOST_UNFOLDED_BYTES (INT64_C(16) << 20) /* of a batch; KafkaSegment.scan_shape requires a limit as large */
#define UNFOLDED_STEP_BYTES (INT64_C(1) << 20)
#define LIKELY_RATIO 4
#define MOST_PAIRS (INT64_C(1) << 22) /* headers of a batch */

/* --- memory */

static void share_frames(piece_rows *r)
{
    const size_t n = PIECE_ROWS;
    int64_t *wide = r->memory;
    uint32_t *narrow = (uint32_t *)(wide + 6 * n);
    uint8_t *flags = (uint8_t *)(narrow + 5 * n);
    r->frames = (frame_columns){wide, wide + n, wide + 2 * n, wide + 3 * n, narrow, narrow + n, narrow + 2 * n};
    r->key_position = wide + 4 * n;
    r->headers_position = wide + 5 * n;
    r->key_length = narrow + 3 * n;
    r->headers = narrow + 4 * n;
    r->has_time = flags;
    r->has_value = flags + n;
    r->has_key = flags + 2 * n;
    r->time_kind = (int8_t *)flags + 3 * n;
}

static void share_chunks(piece_rows *r)
{
    const size_t n = PIECE_ROWS, g = GROUPS;
    int64_t *wide = r->more_memory;
    uint32_t *narrow = (uint32_t *)(wide + 6 * g + 4 * n);
    r->chunks = (chunk_columns){wide, wide + g, wide + 2 * g, wide + 3 * g, wide + 4 * g, wide + 5 * g,
                                narrow, narrow + g, narrow + 2 * g, narrow + 3 * g, narrow + 4 * g, narrow + 5 * g,
                                narrow + 6 * g, GROUPS};
    wide += 6 * g;
    narrow += 7 * g;
    r->entries = (entry_columns){wide, wide + n, wide + 2 * n, wide + 3 * n, narrow, narrow + n, narrow + 2 * n,
                                 narrow + 3 * n, PIECE_ROWS};
}

static void share_batches(piece_rows *r)
{
    const size_t n = PIECE_ROWS, g = GROUPS;
    int64_t *wide = r->more_memory;
    uint32_t *narrow = (uint32_t *)(wide + 17 * g + 6 * n);
    r->batches = (batch_columns){wide, wide + g, wide + 2 * g, wide + 3 * g, wide + 4 * g, wide + 5 * g, wide + 6 * g,
                                 wide + 7 * g, wide + 8 * g, wide + 9 * g, narrow, narrow + g, narrow + 2 * g,
                                 narrow + 3 * g, narrow + 4 * g, GROUPS};
    r->ranges = (record_ranges){wide + 10 * g, wide + 11 * g, wide + 12 * g, wide + 13 * g, wide + 14 * g,
                                wide + 15 * g, wide + 16 * g, narrow + 5 * g, 0};
    wide += 17 * g;
    narrow += 6 * g;
    r->records = (record_columns){wide, wide + n, wide + 2 * n, wide + 3 * n, wide + 4 * n, wide + 5 * n, narrow,
                                  narrow + n, narrow + 2 * n, PIECE_ROWS};
}

int make_piece_rows(piece_rows *r, int64_t kind)
{
    const size_t n = PIECE_ROWS, g = GROUPS;
    r->memory = calloc(n, 6 * sizeof(int64_t) + 5 * sizeof(uint32_t) + 4);
    if (r->memory == NULL) return 0;
    share_frames(r);
    if (kind == PIECE_FRAMES || kind == PIECE_SLOTS) return 1;
    const size_t of_chunks = (6 * g + 4 * n) * sizeof(int64_t) + (7 * g + 4 * n) * sizeof(uint32_t);
    const size_t of_batches = (17 * g + 6 * n) * sizeof(int64_t) + (6 * g + 3 * n) * sizeof(uint32_t);
    r->more_memory = calloc(kind == PIECE_CHUNKS ? of_chunks : of_batches, 1);
    if (r->more_memory == NULL) return 0;
    if (kind == PIECE_CHUNKS) share_chunks(r);
    else share_batches(r);
    return 1;
}

void free_piece_rows(piece_rows *r)
{
    free(r->memory);
    free(r->more_memory);
    free(r->pairs_memory);
    free(r->plain.bytes);
}

static int make_pairs(piece_rows *r, int64_t count)
{
    if (count <= r->pairs.count) return 1;
    const size_t n = (size_t)count;
    free(r->pairs_memory);
    r->pairs = (header_columns){.count = 0};
    int64_t *wide = r->pairs_memory = count > MOST_PAIRS ? NULL : malloc(n * (2 * sizeof(int64_t) + 2 * sizeof(uint32_t) + 1));
    if (wide == NULL) return 0;
    uint32_t *narrow = (uint32_t *)(wide + 2 * n);
    r->pairs = (header_columns){wide, wide + n, narrow, narrow + n, count};
    r->has_content = (uint8_t *)(narrow + 2 * n);
    return 1;
}

/* --- scans */

static int64_t most_rows(const duramen_piece_batch *batch)
{
    return batch->capacity < PIECE_ROWS ? batch->capacity : PIECE_ROWS;
}

static int64_t most_bytes(const duramen_piece_batch *batch)
{
    return batch->values.data == NULL ? INT64_MAX : batch->values.bytes;
}

static piece_scan scan_frames(piece_rows *r, const duramen_piece *piece, const piece_window *w,
                              const duramen_piece_batch *batch, int takes_values)
{
    const duramen_value_room room = {batch->values.data, batch->values.bytes, batch->values.offsets};
    const duramen_scan_end found = duramen_scan_frames(
        w->bytes, w->position, w->end, &piece->layout, &r->frames, most_rows(batch), most_bytes(batch),
        w->previous_offset, (int)piece->verify, NULL, takes_values ? &room : NULL);
    return (piece_scan){found, found.count};
}

static piece_scan scan_slots(piece_rows *r, const duramen_piece *piece, const piece_window *w,
                             const duramen_piece_batch *batch)
{
    const int64_t slot_bytes = piece->record_bytes + 4;
    int64_t most = most_bytes(batch) / slot_bytes;
    if (most < 1) most = 1;
    if (most > most_rows(batch)) most = most_rows(batch);
    /* The window begins with a slot, so that slots are where they are in the file. */
    duramen_scan_end found = duramen_scan_slots(w->bytes, w->position, w->end, piece->record_bytes, most,
                                                (int)piece->verify, NULL);
    const int64_t first = (w->at + w->position) / slot_bytes;
    for (int64_t i = 0; i < found.count; i++) {
        const int64_t position = w->position + i * slot_bytes;
        r->frames.offset[i] = first + i;
        r->frames.position[i] = position;
        r->frames.value_position[i] = position + 4;
        r->frames.value_length[i] = (uint32_t)piece->record_bytes;
    }
    found.last_offset = first + found.count - 1;
    return (piece_scan){found, found.count};
}

static piece_scan scan_chunks(piece_rows *r, const duramen_piece *piece, const piece_window *w,
                              const duramen_piece_batch *batch)
{
    chunk_columns *c = &r->chunks;
    c->count = GROUPS;
    const duramen_scan_end found = duramen_scan_chunks(w->bytes, w->position, w->end, c, most_bytes(batch),
                                                       most_rows(batch), w->previous_offset, (int)piece->verify, NULL);
    c->count = found.count;
    for (int64_t i = 0; i < found.count; i++)
        if (c->chunk_type[i] == CHUNK_USER && c->sub_batches[i] > 0) return (piece_scan){found, -1};
    const int64_t rows = duramen_scan_entries(w->bytes, w->filled, c, &r->entries);
    if (rows < 0 || rows > most_rows(batch)) return (piece_scan){found, -1};
    int64_t row = 0;
    for (int64_t i = 0; i < found.count; i++) {
        if (c->chunk_type[i] != CHUNK_USER) continue;
        for (const int64_t end = row + (int64_t)c->entries[i]; row < end; row++) r->frames.position[row] = c->position[i];
    }
    memcpy(r->frames.offset, r->entries.offset, (size_t)rows * sizeof(int64_t));
    memcpy(r->frames.timestamp, r->entries.timestamp, (size_t)rows * sizeof(int64_t));
    memcpy(r->frames.value_position, r->entries.value_position, (size_t)rows * sizeof(int64_t));
    memcpy(r->frames.value_length, r->entries.value_length, (size_t)rows * sizeof(uint32_t));
    return (piece_scan){found, rows};
}

/* --- batches */

static int is_compressed(const batch_columns *b, int64_t i) { return (b->attributes[i] & BATCH_CODEC) != 0; }

/* How many batches have their records in one source: those before one that is compressed unlike the others. */
static int64_t count_alike(const batch_columns *b, int64_t count)
{
    int64_t first = 0;
    while (first < count && b->visible[first] == 0) first++;
    for (int64_t i = first; i < count; i++)
        if (b->visible[i] != 0 && is_compressed(b, i) != is_compressed(b, first)) return i;
    return count;
}

/* The body of a batch after those that are unfolded already. Returns 0 where Python must read it. */
static int unfold_batch(piece_rows *r, const piece_window *w, int64_t i, const duramen_piece_codecs *codecs)
{
    const batch_columns *b = &r->batches;
    piece_plain *p = &r->plain;
    const uint32_t codec = b->attributes[i] & BATCH_CODEC;
    int64_t bound = 0;
    const body_columns body = {b->data_position + i, b->data_length + i, &codec, 1};
    if (codecs->unfold == NULL || duramen_bound_bodies(w->bytes, w->filled, &body, &bound) < 0) return 0;
    if (bound < (int64_t)b->records[i] * LEAST_RECORD_BYTES || bound > MOST_UNFOLDED_BYTES) return 0;
    if (bound > p->capacity - p->filled) {
        const int64_t capacity = p->filled + bound + UNFOLDED_STEP_BYTES;
        uint8_t *more = realloc(p->bytes, (size_t)capacity);
        if (more == NULL) return 0;
        p->bytes = more;
        p->capacity = capacity;
    }
    const int64_t got = codecs->unfold(codecs->context, codec, w->bytes + b->data_position[i], b->data_length[i],
                                       p->bytes + p->filled, bound);
    if (got < 0 || got > bound) return 0;
    p->filled += got;
    return 1;
}

/* Takes a visible batch: its records become the range `n`, and the rows from `row` on. */
static void take_batch(piece_rows *r, int64_t i, int64_t n, int64_t row, int64_t position, int64_t length)
{
    const batch_columns *b = &r->batches;
    ((int64_t *)r->ranges.position)[n] = position;
    ((int64_t *)r->ranges.length)[n] = length;
    ((int64_t *)r->ranges.records)[n] = b->records[i];
    ((int64_t *)r->ranges.row)[n] = row;
    ((int64_t *)r->ranges.base_offset)[n] = b->base_offset[i];
    ((int64_t *)r->ranges.last_offset)[n] = b->last_offset[i];
    ((int64_t *)r->ranges.base_timestamp)[n] = b->base_timestamp[i];
    for (const int64_t end = row + b->records[i]; row < end; row++) {
        r->frames.position[row] = b->position[i];
        r->time_kind[row] = (b->attributes[i] & APPEND_TIME) != 0;
        r->frames.timestamp[row] = b->max_timestamp[i];
    }
}

/* Where the records of the visible batches lie. Of batches that are compressed, only so many are taken as likely have
 * room: `*count` says how many. Returns the number of rows, or -1 where Python must read. */
static int64_t find_ranges(piece_rows *r, const piece_window *w, int64_t *count, int64_t room,
                           const duramen_piece_codecs *codecs)
{
    const batch_columns *b = &r->batches;
    int64_t total = 0, n = 0, folded = 0;
    r->plain.filled = 0;
    r->source = (piece_source){w->bytes, w->filled};
    *count = count_alike(b, *count);
    for (int64_t i = 0; i < *count; i++) {
        if (b->visible[i] == 0) continue;
        if (b->magic[i] != 2 || b->records[i] > PIECE_ROWS - total) return -1;
        int64_t position = b->data_position[i], length = b->data_length[i];
        if (is_compressed(b, i)) {
            const int64_t ratio = folded > 0 ? r->plain.filled / folded + 1 : 1;
            if (n > 0 && r->plain.filled + length * ratio > room) {
                *count = i;
                break;
            }
            folded += length;
            position = r->plain.filled;
            if (!unfold_batch(r, w, i, codecs)) return -1;
            length = r->plain.filled - position;
            r->source = (piece_source){r->plain.bytes, r->plain.filled};
        }
        take_batch(r, i, n++, total, position, length);
        total += b->records[i];
    }
    r->ranges.count = n;
    return total;
}

static piece_scan scan_batches(piece_rows *r, const duramen_piece *piece, const piece_window *w,
                               const duramen_piece_batch *batch, const duramen_piece_codecs *codecs)
{
    const int64_t room = batch->values.data == NULL ? UNFOLDED_STEP_BYTES : batch->values.bytes;
    const int64_t most = r->plain.filled > 0 ? room / LIKELY_RATIO : most_bytes(batch);
    r->batches.count = GROUPS;
    duramen_scan_end found = duramen_scan_batches(w->bytes, w->position, w->end, &r->batches, most, most_rows(batch),
                                                  w->previous_offset, (int)piece->verify, NULL, NULL);
    int64_t count = found.count;
    const int64_t rows = find_ranges(r, w, &count, room, codecs);
    if (count < found.count)
        found = (duramen_scan_end){count, r->batches.position[count], STOP_LIMIT, r->batches.last_offset[count - 1]};
    const record_sources sources = {{r->source.bytes, NULL}, {r->source.filled, 0}};
    if (rows < 0 || rows > most_rows(batch) ||
        duramen_scan_records(&sources, &r->ranges, &r->records, (int)piece->walks_headers, NULL) != rows)
        return (piece_scan){found, -1};
    for (int64_t i = 0; i < rows; i++) {
        r->has_key[i] = r->records.key_length[i] != NULL_LENGTH;
        r->has_value[i] = r->records.value_length[i] != NULL_LENGTH;
        r->key_length[i] = r->has_key[i] ? r->records.key_length[i] : 0;
        r->frames.value_length[i] = r->has_value[i] ? r->records.value_length[i] : 0;
        r->key_position[i] = r->has_key[i] ? r->records.key_position[i] : 0;
        r->frames.value_position[i] = r->has_value[i] ? r->records.value_position[i] : 0;
        if (!r->time_kind[i]) r->frames.timestamp[i] = r->records.timestamp[i];
        r->headers_position[i] = r->records.headers_position[i];
        r->headers[i] = r->records.headers[i];
    }
    memcpy(r->frames.offset, r->records.offset, (size_t)rows * sizeof(int64_t));
    return (piece_scan){found, rows};
}

/* Stored times become microseconds, as timestamps_from does it. */
static void convert_times(piece_rows *r, const duramen_piece *piece, int64_t count)
{
    const int64_t unit = piece->time_unit_us, most = unit > 0 ? INT64_MAX / unit : 0;
    const int64_t least = piece->signed_times ? -most : 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t raw = r->frames.timestamp[i];
        r->has_time[i] = unit > 0 && raw >= least && raw <= most;
        r->frames.timestamp[i] = r->has_time[i] ? raw * unit : 0;
        if (piece->kind != PIECE_BATCHES) r->time_kind[i] = r->has_time[i] ? (int8_t)piece->time_kind : -1;
    }
}

piece_scan scan_piece_rows(piece_rows *r, const duramen_piece *piece, const piece_window *w,
                           const duramen_piece_batch *batch, const duramen_piece_codecs *codecs, int takes_values)
{
    piece_scan found;
    r->source = (piece_source){w->bytes, w->filled};
    if (piece->kind == PIECE_FRAMES) found = scan_frames(r, piece, w, batch, takes_values);
    else if (piece->kind == PIECE_SLOTS) found = scan_slots(r, piece, w, batch);
    else if (piece->kind == PIECE_CHUNKS) found = scan_chunks(r, piece, w, batch);
    else found = scan_batches(r, piece, w, batch, codecs);
    if (found.rows > 0) convert_times(r, piece, found.rows);
    return found;
}

/* --- selection */

static int is_wanted(const piece_rows *r, const duramen_piece *p, int64_t i)
{
    const int64_t offset = r->frames.offset[i], us = r->frames.timestamp[i];
    if (offset < p->from_offset || offset >= p->to_offset) return 0;
    return !p->has_times || (r->has_time[i] && us >= p->from_us && us <= p->last_us);
}

static void move_row(piece_rows *r, int64_t to, int64_t from)
{
    frame_columns *f = &r->frames;
    f->offset[to] = f->offset[from];
    f->timestamp[to] = f->timestamp[from];
    f->position[to] = f->position[from];
    f->value_position[to] = f->value_position[from];
    f->value_length[to] = f->value_length[from];
    f->headers_length[to] = f->headers_length[from];
    r->key_position[to] = r->key_position[from];
    r->key_length[to] = r->key_length[from];
    r->headers_position[to] = r->headers_position[from];
    r->headers[to] = r->headers[from];
    r->has_time[to] = r->has_time[from];
    r->has_value[to] = r->has_value[from];
    r->has_key[to] = r->has_key[from];
    r->time_kind[to] = r->time_kind[from];
}

int64_t select_piece_rows(piece_rows *r, const duramen_piece *piece, int64_t count)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!is_wanted(r, piece, i)) continue;
        if (kept != i) move_row(r, kept, i);
        kept++;
    }
    return kept;
}

/* --- user headers */

/* How many headers the blocks of these rows can hold. */
static int64_t most_headers(const piece_rows *r, int64_t count)
{
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++)
        if (r->frames.headers_length[i] > 0) total += r->frames.headers_length[i] / LEAST_HEADER_BYTES + 1;
    return total;
}

static void read_block(piece_rows *r, const duramen_piece *piece, const uint8_t *bytes, int64_t i,
                       header_columns *pairs, int64_t found)
{
    const int64_t end = r->frames.value_position[i];
    const piece_block block = {bytes, end - r->frames.headers_length[i], end, (uint32_t)piece->key_marker,
                               (uint32_t)piece->null_marker, r->frames.value_length[i] > 0};
    const piece_block_fields fields = read_piece_block(&block, pairs, found);
    r->has_value[i] = !fields.is_null;
    r->has_key[i] = fields.key.length != NULL_LENGTH;
    r->key_position[i] = r->has_key[i] ? fields.key.position : 0;
    r->key_length[i] = r->has_key[i] ? fields.key.length : 0;
    r->headers[i] = fields.headers;
}

/* What the user headers of the rows say. Returns how many headers there are, or -1. */
static int64_t read_blocks(piece_rows *r, const duramen_piece *piece, const uint8_t *bytes, int64_t count,
                           const duramen_piece_batch *batch)
{
    const int has_blocks = piece->kind == PIECE_FRAMES && piece->key_marker >= 0;
    header_columns *pairs = batch->list_offsets != NULL && has_blocks ? &r->pairs : NULL;
    int64_t found = 0;
    if (pairs != NULL && !make_pairs(r, most_headers(r, count))) return -1;
    for (int64_t i = 0; i < count; i++) {
        const int is_needed = batch->keys.data != NULL || pairs != NULL || r->frames.value_length[i] == 0;
        if (has_blocks && is_needed && r->frames.headers_length[i] > 0) {
            read_block(r, piece, bytes, i, pairs, found);
            found += r->headers[i];
        } else {
            r->has_value[i] = 1;
            r->has_key[i] = 0;
            r->key_position[i] = r->key_length[i] = r->headers[i] = 0;
        }
    }
    return pairs == NULL ? 0 : found;
}

/* The headers of records of batches. Returns how many there are, or -1 where a key is not text. */
static int64_t read_pairs(piece_rows *r, int64_t count)
{
    const piece_source *w = &r->source;
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += r->headers[i];
    if (!make_pairs(r, total)) return -1;
    if (duramen_scan_headers(w->bytes, w->filled, r->headers_position, r->headers, count, &r->pairs) != total) return -1;
    for (int64_t i = 0; i < total; i++)
        if (!duramen_is_utf8(w->bytes + r->pairs.key_position[i], r->pairs.key_length[i])) return -1;
    return total;
}

static int64_t find_headers(piece_rows *r, const duramen_piece *piece, int64_t count,
                            const duramen_piece_batch *batch)
{
    int64_t found = 0;
    if (piece->kind != PIECE_BATCHES) found = read_blocks(r, piece, r->source.bytes, count, batch);
    else if (batch->list_offsets != NULL) found = read_pairs(r, count);
    for (int64_t i = 0; i < found; i++) {
        r->has_content[i] = r->pairs.value_length[i] != NULL_LENGTH;
        if (!r->has_content[i]) r->pairs.value_position[i] = r->pairs.value_length[i] = 0;
    }
    return found;
}

/* --- columns */

static void put_bits(uint8_t *bitmap, const uint8_t *flags, int64_t count)
{
    if (count <= 0) return;
    memset(bitmap, 0, (size_t)((count + 7) / 8));
    for (int64_t i = 0; i < count; i++) bitmap[i >> 3] |= (uint8_t)(flags[i] << (i & 7));
}

static void put_numbers(const piece_rows *r, int64_t at, duramen_piece_batch *batch, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof(int64_t);
    if (batch->offset != NULL) memcpy(batch->offset, r->frames.offset, bytes);
    if (batch->position != NULL)
        for (int64_t i = 0; i < count; i++) batch->position[i] = at + r->frames.position[i];
    if (batch->timestamp != NULL) {
        memcpy(batch->timestamp, r->frames.timestamp, bytes);
        put_bits(batch->timestamp_valid, r->has_time, count);
    }
    if (batch->time_kind != NULL)
        for (int64_t i = 0; i < count; i++) batch->time_kind[i] = r->time_kind[i];
    batch->first_offset = r->frames.offset[0];
    batch->last_offset = r->frames.offset[count - 1];
}

/* No flags: none is null. Returns 0 where there is too little room. */
static int put_values(const piece_source *from, const int64_t *positions, const uint32_t *lengths, const uint8_t *flags,
                      int64_t count, const duramen_piece_values *out)
{
    if (flags != NULL) put_bits(out->valid, flags, count);
    else if (count > 0) memset(out->valid, 0xff, (size_t)((count + 7) / 8));
    return duramen_gather(from->bytes, from->filled, positions, lengths, count, out->offsets, out->data, out->bytes) >= 0;
}

/* Lists without headers are null. */
static int put_headers(const piece_rows *r, const duramen_piece_batch *batch, int64_t count, int64_t pairs)
{
    const header_columns *h = &r->pairs;
    if (pairs > batch->headers) return 0;
    batch->list_offsets[0] = 0;
    memset(batch->list_valid, 0, (size_t)((count + 7) / 8));
    for (int64_t i = 0; i < count; i++) {
        batch->list_offsets[i + 1] = batch->list_offsets[i] + (int32_t)r->headers[i];
        batch->list_valid[i >> 3] |= (uint8_t)((r->headers[i] > 0) << (i & 7));
    }
    return put_values(&r->source, h->key_position, h->key_length, NULL, pairs, &batch->header_keys) &&
           put_values(&r->source, h->value_position, h->value_length, r->has_content, pairs, &batch->header_values);
}

static int put_payloads(const piece_rows *r, const duramen_piece_batch *batch, int64_t count, int64_t pairs,
                        int has_copied)
{
    const frame_columns *f = &r->frames;
    if (batch->keys.data != NULL && !put_values(&r->source, r->key_position, r->key_length, r->has_key, count, &batch->keys))
        return 0;
    if (batch->list_offsets != NULL && !put_headers(r, batch, count, pairs)) return 0;
    if (has_copied) put_bits(batch->values.valid, r->has_value, count);
    return batch->values.data == NULL || has_copied ||
           put_values(&r->source, f->value_position, f->value_length, r->has_value, count, &batch->values);
}

static int ask_for(int64_t *room, int64_t needed)
{
    if (needed <= *room) return 0;
    *room = needed;
    return 1;
}

static int64_t sum_of(const uint32_t *lengths, int64_t count)
{
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += lengths[i];
    return total;
}

/* States the room that the batch needs where it has too little, of all columns at once. */
static int64_t ask_for_room(const piece_rows *r, duramen_piece_batch *batch, int64_t count, int64_t pairs)
{
    int asks = 0;
    if (batch->values.data != NULL) asks |= ask_for(&batch->values.bytes, sum_of(r->frames.value_length, count));
    if (batch->keys.data != NULL) asks |= ask_for(&batch->keys.bytes, sum_of(r->key_length, count));
    if (batch->list_offsets != NULL) {
        asks |= ask_for(&batch->headers, pairs);
        asks |= ask_for(&batch->header_keys.bytes, sum_of(r->pairs.key_length, pairs));
        asks |= ask_for(&batch->header_values.bytes, sum_of(r->pairs.value_length, pairs));
    }
    return asks ? DURAMEN_PIECE_ROOM : DURAMEN_PIECE_PYTHON;
}

int64_t put_piece_rows(piece_rows *r, const duramen_piece *piece, int64_t at, duramen_piece_batch *batch, int64_t count,
                       int has_copied)
{
    const int64_t pairs = find_headers(r, piece, count, batch);
    if (pairs < 0) return DURAMEN_PIECE_PYTHON;
    if (!put_payloads(r, batch, count, pairs, has_copied)) return ask_for_room(r, batch, count, pairs);
    put_numbers(r, at, batch, count);
    return count;
}

#include "piece_rows.h"

#include <stdlib.h>

#include "columns.h"
#include "slots.h"

#define BLOCK_PREFIX_BYTES 8
#define NO_KEY UINT32_MAX
#define GROUPS 4096 /* chunks or batches of a scan */
#define APPEND_TIME 8

/* --- memory */

static void share_frames(piece_rows *r)
{
    const size_t n = PIECE_ROWS;
    int64_t *wide = r->memory;
    uint32_t *narrow = (uint32_t *)(wide + 5 * n);
    uint8_t *flags = (uint8_t *)(narrow + 4 * n);
    r->frames = (frame_columns){wide, wide + n, wide + 2 * n, wide + 3 * n, narrow, narrow + n, narrow + 2 * n};
    r->key_position = wide + 4 * n;
    r->key_length = narrow + 3 * n;
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
    r->memory = calloc(n, 5 * sizeof(int64_t) + 4 * sizeof(uint32_t) + 4);
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
}

/* --- scans */

static int64_t most_rows(const duramen_piece_batch *batch)
{
    return batch->capacity < PIECE_ROWS ? batch->capacity : PIECE_ROWS;
}

static int64_t most_bytes(const duramen_piece_batch *batch)
{
    return batch->values == NULL ? INT64_MAX : batch->values_bytes;
}

static piece_scan scan_frames(piece_rows *r, const duramen_piece *piece, const piece_window *w,
                              const duramen_piece_batch *batch, int takes_values)
{
    const duramen_value_room room = {batch->values, batch->values_bytes, batch->value_offsets};
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

/* Where the records of the visible batches lie. Returns how many there are, or -1 where one of them is compressed, or is
 * of an older format. */
static int64_t find_ranges(piece_rows *r, int64_t count)
{
    const batch_columns *b = &r->batches;
    int64_t *const position = (int64_t *)r->ranges.position, *const length = (int64_t *)r->ranges.length,
            *const records = (int64_t *)r->ranges.records, *const row = (int64_t *)r->ranges.row,
            *const base = (int64_t *)r->ranges.base_offset, *const last = (int64_t *)r->ranges.last_offset,
            *const time = (int64_t *)r->ranges.base_timestamp;
    int64_t total = 0, n = 0;
    for (int64_t i = 0; i < count; i++) {
        if (b->visible[i] == 0) continue;
        if (b->magic[i] != 2 || b->attributes[i] & BATCH_CODEC) return -1;
        position[n] = b->data_position[i];
        length[n] = b->data_length[i];
        records[n] = b->records[i];
        row[n] = total;
        base[n] = b->base_offset[i];
        last[n] = b->last_offset[i];
        time[n] = b->base_timestamp[i];
        for (int64_t end = total + records[n]; total < end && total < PIECE_ROWS; total++) {
            r->frames.position[total] = b->position[i];
            r->time_kind[total] = (b->attributes[i] & APPEND_TIME) != 0;
            r->frames.timestamp[total] = b->max_timestamp[i];
        }
        if (total != row[n] + records[n]) return -1;
        n++;
    }
    r->ranges.count = n;
    return total;
}

static piece_scan scan_batches(piece_rows *r, const duramen_piece *piece, const piece_window *w,
                               const duramen_piece_batch *batch)
{
    r->batches.count = GROUPS;
    const duramen_scan_end found =
        duramen_scan_batches(w->bytes, w->position, w->end, &r->batches, most_bytes(batch), most_rows(batch),
                             w->previous_offset, (int)piece->verify, NULL, NULL);
    const int64_t rows = find_ranges(r, found.count);
    const record_sources sources = {{w->bytes, NULL}, {w->filled, 0}};
    if (rows < 0 || rows > most_rows(batch) ||
        duramen_scan_records(&sources, &r->ranges, &r->records, 0, NULL) != rows)
        return (piece_scan){found, -1};
    for (int64_t i = 0; i < rows; i++) {
        r->has_key[i] = r->records.key_length[i] != NULL_LENGTH;
        r->has_value[i] = r->records.value_length[i] != NULL_LENGTH;
        r->key_length[i] = r->has_key[i] ? r->records.key_length[i] : 0;
        r->frames.value_length[i] = r->has_value[i] ? r->records.value_length[i] : 0;
        r->key_position[i] = r->has_key[i] ? r->records.key_position[i] : 0;
        r->frames.value_position[i] = r->has_value[i] ? r->records.value_position[i] : 0;
        if (!r->time_kind[i]) r->frames.timestamp[i] = r->records.timestamp[i];
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
                           const duramen_piece_batch *batch, int takes_values)
{
    piece_scan found;
    if (piece->kind == PIECE_FRAMES) found = scan_frames(r, piece, w, batch, takes_values);
    else if (piece->kind == PIECE_SLOTS) found = scan_slots(r, piece, w, batch);
    else if (piece->kind == PIECE_CHUNKS) found = scan_chunks(r, piece, w, batch);
    else found = scan_batches(r, piece, w, batch);
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

/* --- user headers that are a key */

/* The key that the user headers of a row are, and whether its value is null. 0: they hold something else. */
static int parse_block(piece_rows *r, const duramen_piece *piece, const uint8_t *bytes, int64_t i)
{
    const int64_t length = r->frames.headers_length[i], from = r->frames.value_position[i] - length;
    r->has_value[i] = 1;
    r->has_key[i] = 0;
    r->key_position[i] = r->key_length[i] = 0;
    if (length == 0 || piece->key_marker < 0) return 1;
    if (length < BLOCK_PREFIX_BYTES) return 0;
    const uint32_t marker = load32(bytes + from, 1), key = load32(bytes + from + 4, 1);
    const int is_null = marker == (uint32_t)piece->null_marker;
    if (is_null ? r->frames.value_length[i] > 0 : marker != (uint32_t)piece->key_marker) return 0;
    r->has_value[i] = !is_null;
    if (is_null && key == NO_KEY) return length == BLOCK_PREFIX_BYTES;
    if ((int64_t)key != length - BLOCK_PREFIX_BYTES) return 0;
    r->has_key[i] = 1;
    r->key_position[i] = from + BLOCK_PREFIX_BYTES;
    r->key_length[i] = key;
    return 1;
}

/* 0: some row has user headers that only Python can show. */
static int parse_blocks(piece_rows *r, const duramen_piece *piece, const uint8_t *bytes, int64_t count,
                        const duramen_piece_batch *batch)
{
    if (piece->kind == PIECE_BATCHES) return 1; /* which the scan has read */
    if (batch->values == NULL && !batch->wants_blocks) return 1;
    for (int64_t i = 0; i < count; i++) {
        const int is_needed = batch->wants_blocks || r->frames.value_length[i] == 0;
        if (!parse_block(r, piece, bytes, i) && is_needed) return 0;
        if (!is_needed) r->has_value[i] = 1;
    }
    return 1;
}

/* --- columns */

static void put_bits(uint8_t *bitmap, const uint8_t *flags, int64_t count)
{
    if (count <= 0) return;
    memset(bitmap, 0, (size_t)((count + 7) / 8));
    for (int64_t i = 0; i < count; i++) bitmap[i >> 3] |= (uint8_t)(flags[i] << (i & 7));
}

static void put_numbers(const piece_rows *r, const piece_window *w, duramen_piece_batch *batch, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof(int64_t);
    if (batch->offset != NULL) memcpy(batch->offset, r->frames.offset, bytes);
    if (batch->position != NULL)
        for (int64_t i = 0; i < count; i++) batch->position[i] = w->at + r->frames.position[i];
    if (batch->timestamp != NULL) {
        memcpy(batch->timestamp, r->frames.timestamp, bytes);
        put_bits(batch->timestamp_valid, r->has_time, count);
    }
    if (batch->time_kind != NULL)
        for (int64_t i = 0; i < count; i++) batch->time_kind[i] = r->time_kind[i];
    batch->first_offset = r->frames.offset[0];
    batch->last_offset = r->frames.offset[count - 1];
}

static int64_t put_keys(const piece_rows *r, const piece_window *w, duramen_piece_batch *batch, int64_t count)
{
    if (duramen_gather(w->bytes, w->filled, r->key_position, r->key_length, count, batch->key_offsets, batch->keys,
                       batch->keys_bytes) < 0) {
        batch->needed_bytes = 0;
        for (int64_t i = 0; i < count; i++) batch->needed_bytes += r->key_length[i];
        return DURAMEN_PIECE_KEY_ROOM;
    }
    put_bits(batch->key_valid, r->has_key, count);
    return count;
}

static int64_t put_values(const piece_rows *r, const piece_window *w, duramen_piece_batch *batch, int64_t count,
                          int has_copied)
{
    if (!has_copied && duramen_gather(w->bytes, w->filled, r->frames.value_position, r->frames.value_length, count,
                                     batch->value_offsets, batch->values, batch->values_bytes) < 0) {
        batch->needed_bytes = 0;
        for (int64_t i = 0; i < count; i++) batch->needed_bytes += r->frames.value_length[i];
        return DURAMEN_PIECE_VALUE_ROOM;
    }
    put_bits(batch->value_valid, r->has_value, count);
    return count;
}

int64_t put_piece_rows(piece_rows *r, const duramen_piece *piece, const piece_window *w, duramen_piece_batch *batch,
                       int64_t count, int has_copied)
{
    if (!parse_blocks(r, piece, w->bytes, count, batch)) return DURAMEN_PIECE_PYTHON;
    if (batch->keys != NULL && put_keys(r, w, batch, count) < 0) return DURAMEN_PIECE_KEY_ROOM;
    if (batch->values != NULL && put_values(r, w, batch, count, has_copied) < 0) return DURAMEN_PIECE_VALUE_ROOM;
    put_numbers(r, w, batch, count);
    return count;
}

#define _GNU_SOURCE
#include "append.h"
#include "records.h"
#include "slots.h"
#include <limits.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

enum { FUTEX_WAKE_SHARED = 1 };

double duramen_monotonic_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int64_t clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* The time of the record; -1 where the ordinary path must decide. */
static int64_t time_of(const append_target *to, const append_limits *limits, const append_state *before,
                       const append_record *record)
{
    const int64_t now = record->now_us < 0 ? clock_us() : record->now_us;
    const int64_t usual = to->is_ordered && before->last_us > now ? before->last_us : now;
    if (usual >= limits->us || now < 0) return -1;
    if (record->us < 0) return usual;
    if (to->time_unit_us == 0 || (to->is_ordered && record->us < before->last_us)) return -1;
    return record->us;
}

static int64_t encode_frame(const append_target *to, append_buffer out, const append_state *before, const append_record *record,
                            int64_t time)
{
    const duramen_values value = {.count = 1, .pointers = &record->value, .lengths = &record->value_bytes};
    const duramen_values headers = {.count = 1, .pointers = &record->headers, .lengths = &record->headers_bytes};
    const frame_columns *all = &to->frames;
    const int64_t row = before->rows;
    frame_columns frame = {all->offset + row,         all->timestamp + row,      all->position + row,
                           all->value_position + row, all->value_length + row,   all->headers_length + row,
                           all->flags + row};

    *frame.offset = before->next_offset;
    *frame.timestamp = time;
    *frame.flags = 0;
    return duramen_encode_frames(out.data, out.size_bytes, &to->layout, &frame, &value,
                                 record->headers_bytes > 0 ? &headers : NULL, before->position);
}

static int64_t encode_slot(const append_target *to, append_buffer out, const append_state *before, const append_record *record)
{
    const duramen_values value = {.count = 1, .pointers = &record->value, .lengths = &record->value_bytes};
    to->slot_offsets[before->rows] = before->next_offset;
    to->slot_positions[before->rows] = before->position;
    return duramen_encode_slots(out.data, out.size_bytes, &value, to->slot_bytes);
}

static int64_t encode_chunk(const append_target *to, append_buffer out, const append_state *before, const append_record *record,
                            int64_t time)
{
    const duramen_values value = {.count = 1, .pointers = &record->value, .lengths = &record->value_bytes};
    const chunk_columns *all = &to->chunks;
    const int64_t row = before->rows;
    chunk_columns one = {all->chunk_id + row,       all->timestamp + row,      all->epoch + row,
                         all->position + row,       all->data_position + row,  all->inflated_bytes + row,
                         all->data_length + row,    all->trailer_length + row, all->records + row,
                         all->entries + row,        all->chunk_type + row,     all->sub_batches + row,
                         all->tracking + row,       1};

    *one.chunk_id = before->next_offset;
    *one.timestamp = time;
    *one.epoch = to->epoch;
    *one.records = 1;
    return duramen_encode_chunks(out.data, out.size_bytes, to->chunk_version, &one, &value, before->position);
}

static int64_t encode_batch(const append_target *to, append_buffer out, const append_state *before, const append_record *record,
                            int64_t time)
{
    const record_field value = {record->value, record->value_bytes}, fields = {record->headers, record->headers_bytes};
    const batch_columns *all = &to->batches;
    const int64_t row = before->rows;
    batch_columns one = {all->base_offset + row,   all->last_offset + row,    all->base_timestamp + row,
                         all->max_timestamp + row, all->producer_id + row,    all->producer_epoch + row,
                         all->base_sequence + row, all->leader_epoch + row,   all->position + row,
                         all->data_position + row, all->data_length + row,    all->records + row,
                         all->visible + row,       all->attributes + row,     all->magic + row,
                         1};

    *one.base_offset = *one.last_offset = before->next_offset;
    *one.base_timestamp = *one.max_timestamp = time;
    *one.producer_id = *one.producer_epoch = *one.base_sequence = -1;
    *one.leader_epoch = to->epoch;
    *one.attributes = 0;
    return duramen_encode_record(out.data, out.size_bytes, &one, &value, &fields, before->position);
}

static int64_t encode(const append_target *to, append_buffer out, const append_state *before,
                      const append_record *record, int64_t us)
{
    const int64_t time = to->time_unit_us == 0 ? 0 : us / to->time_unit_us;

    if (to->kind == RECORD_FRAME) return encode_frame(to, out, before, record, time);
    if (to->kind == RECORD_BATCH) return encode_batch(to, out, before, record, time);
    if (record->headers_bytes > 0) return -1;
    return to->kind == RECORD_SLOT ? encode_slot(to, out, before, record)
                                  : encode_chunk(to, out, before, record, time);
}

/* Writes the index entry of the chunk. Returns where the next one goes: the same place if that failed. */
int64_t duramen_put_entry(const append_target *to, const append_state *before)
{
    uint8_t entry[INDEX_ENTRY_BYTES];
    const int64_t row = before->rows;
    store64(entry, (uint64_t)to->chunks.chunk_id[row], 1);
    store64(entry + 8, (uint64_t)to->chunks.timestamp[row], 1);
    store64(entry + 16, (uint64_t)to->chunks.epoch[row], 1);
    store32(entry + 24, (uint32_t)to->chunks.position[row], 1);
    entry[28] = (uint8_t)to->chunks.chunk_type[row];
    const int is_written = pwrite(to->index, entry, sizeof entry, (off_t)before->index_position) == sizeof entry;
    return before->index_position + (is_written ? INDEX_ENTRY_BYTES : 0);
}

/* A link to the file is not the file: the next writer refuses it. */
static int is_at(const append_place *place)
{
    struct stat found;
    return lstat(place->path, &found) == 0 && (uint64_t)found.st_ino == place->inode &&
           (uint64_t)found.st_dev == place->device;
}

int duramen_is_in_place(const append_target *to)
{
    struct stat found;
    if (getpid() != to->process || fstat(to->file, &found) != 0 || found.st_nlink == 0) return 0;
    return is_at(&to->places[0]);
}

int duramen_is_whole(const append_target *to)
{
    for (int place = 0; place < to->place_count; place++)
        if (!is_at(&to->places[place])) return 0;
    return 1;
}

void duramen_put_mark(uint8_t *mark, const append_state *state)
{
    uint8_t *slot = mark + MARK_COUNTER_BYTES;
    memcpy(mark, &state->counter, MARK_COUNTER_BYTES);
    store64(slot + 8, (uint64_t)state->number, 0);
    store64(slot + 24, (uint64_t)state->position, 0);
    store64(slot + 32, (uint64_t)state->next_offset, 0);
    store64(slot + 40, (uint64_t)state->durable_position, 0);
    store64(slot + 48, (uint64_t)state->durable_offset, 0);
    store32(slot + 64, state->crc32c, 0);
    store32(slot + 68, state->durable_crc32c, 0);
    store32(slot + MARK_SLOT_BYTES - 4, duramen_crc32c(0, slot, MARK_SLOT_BYTES - 4), 0);
}

/* Every waiter of every process. */
void duramen_wake_readers(const append_target *to)
{
#ifdef __linux__
    if (to->counter != NULL) syscall(SYS_futex, to->counter, FUTEX_WAKE_SHARED, INT_MAX, NULL, NULL, 0);
#else
    (void)to;
#endif
}

int64_t duramen_encode_next(const append_target *to, const append_limits *limits, const append_state *before,
                            const append_record *record, append_buffer out, append_state *after)
{
    const int64_t us = time_of(to, limits, before, record);

    if (us < 0 || record->value_bytes <= 0) return -1; /* only an ordinary append judges an empty value */
    if (before->rows >= limits->rows || before->next_offset >= limits->next_offset) return -1;
    const int64_t size = encode(to, out, before, record, us);
    if (size < 0) return -1;
    *after = *before;
    after->position += size;
    after->next_offset++;
    after->rows++;
    if (us > after->last_us) after->last_us = us;
    return size;
}

int duramen_append(const append_target *to, const append_limits *limits, const append_state *before,
                   const append_record *record, uint8_t *mark, append_state *after)
{
    const int64_t timed_bytes = record->is_timed ? record->value_bytes + record->headers_bytes : 0;
    const append_buffer out = {to->buffer, to->buffer_bytes};

    if (record->is_timed && before->timed_records >= limits->timed_records) return APPEND_NOT_DONE;
    if (timed_bytes > limits->timed_bytes - before->timed_bytes) return APPEND_NOT_DONE;
    const int64_t size = duramen_encode_next(to, limits, before, record, out, after);
    if (size < 0 || size > limits->position - before->position) return APPEND_NOT_DONE;
    if (!duramen_is_in_place(to)) return APPEND_NOT_DONE;

    const ssize_t written = pwrite(to->file, to->buffer, (size_t)size, (off_t)before->position);
    if (written != size) return APPEND_TORN;
    after->number++;
    after->counter++;
    after->timed_records += record->is_timed;
    after->timed_bytes += timed_bytes;
    if (to->index >= 0) after->index_position = duramen_put_entry(to, before);
    if (to->has_digest) after->crc32c = duramen_crc32c(before->crc32c, to->buffer, (size_t)size);
    duramen_put_mark(mark, after);
    /* The counter and the slot in one write. A reader that sees the counter before the slot sleeps shortly at first. */
    if (pwrite(to->page, mark, MARK_BYTES, 0) != MARK_BYTES) return APPEND_UNMARKED;
    duramen_wake_readers(to);
    return APPEND_DONE;
}

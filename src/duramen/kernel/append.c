#define _GNU_SOURCE
#include "append.h"
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

static int64_t encode(const append_target *to, const append_state *before, const append_record *record, int64_t us,
                      frame_columns *row)
{
    const duramen_values value = {.count = 1, .pointers = &record->value, .lengths = &record->value_bytes};
    const duramen_values headers = {.count = 1, .pointers = &record->headers, .lengths = &record->headers_bytes};

    *row->offset = before->next_offset;
    if (to->slot_bytes > 0) {
        *row->position = before->position;
        return duramen_encode_slots(to->buffer, to->buffer_bytes, &value, to->slot_bytes);
    }
    *row->timestamp = to->time_unit_us == 0 ? 0 : us / to->time_unit_us;
    *row->flags = 0;
    return duramen_encode_frames(to->buffer, to->buffer_bytes, &to->layout, row, &value,
                                 record->headers_bytes > 0 ? &headers : NULL, before->position);
}

static int is_in_place(const append_target *to)
{
    struct stat found;
    return getpid() == to->process && stat(to->lock_path, &found) == 0 && (uint64_t)found.st_ino == to->lock_inode &&
           (uint64_t)found.st_dev == to->lock_device;
}

static void put_mark(uint8_t *mark, const append_state *state)
{
    uint8_t *slot = mark + MARK_COUNTER_BYTES;
    memcpy(mark, &state->counter, MARK_COUNTER_BYTES);
    store64(slot + 8, (uint64_t)state->number, 0);
    store64(slot + 24, (uint64_t)state->position, 0);
    store64(slot + 32, (uint64_t)state->next_offset, 0);
    store32(slot + 64, state->crc32c, 0);
    store32(slot + MARK_SLOT_BYTES - 4, duramen_crc32c(0, slot, MARK_SLOT_BYTES - 4), 0);
}

/* Every waiter of every process. */
static void wake(const append_target *to)
{
#ifdef __linux__
    if (to->counter != NULL) syscall(SYS_futex, to->counter, FUTEX_WAKE_SHARED, INT_MAX, NULL, NULL, 0);
#else
    (void)to;
#endif
}

int duramen_append(const append_target *to, const append_limits *limits, const append_state *before,
                   const append_record *record, frame_columns *row, uint8_t *mark, append_state *after)
{
    const int64_t timed_bytes = record->is_timed ? record->value_bytes + record->headers_bytes : 0;
    const int64_t us = time_of(to, limits, before, record);

    if (us < 0 || record->value_bytes <= 0) return APPEND_NOT_DONE; /* only an ordinary append judges an empty value */
    if (before->rows >= limits->rows || before->next_offset >= limits->next_offset) return APPEND_NOT_DONE;
    if (record->is_timed && before->timed_records >= limits->timed_records) return APPEND_NOT_DONE;
    if (timed_bytes > limits->timed_bytes - before->timed_bytes) return APPEND_NOT_DONE;
    if (record->headers_bytes > 0 && to->slot_bytes > 0) return APPEND_NOT_DONE;
    const int64_t size = encode(to, before, record, us, row);
    if (size < 0 || size > limits->position - before->position) return APPEND_NOT_DONE;
    if (!is_in_place(to)) return APPEND_NOT_DONE;

    const ssize_t written = pwrite(to->file, to->buffer, (size_t)size, (off_t)before->position);
    if (written != size) return APPEND_TORN;
    *after = *before;
    after->position += size;
    after->next_offset++;
    after->number++;
    after->counter++;
    after->rows++;
    after->timed_records += record->is_timed;
    after->timed_bytes += timed_bytes;
    if (us > after->last_us) after->last_us = us;
    if (to->has_digest) after->crc32c = duramen_crc32c(before->crc32c, to->buffer, (size_t)size);
    put_mark(mark, after);
    /* The counter and the slot in one write. A reader that sees the counter before the slot sleeps shortly at first. */
    if (pwrite(to->page, mark, MARK_BYTES, 0) != MARK_BYTES) return APPEND_UNMARKED;
    wake(to);
    return APPEND_DONE;
}

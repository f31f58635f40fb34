#define _GNU_SOURCE
#include "append_queue.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

enum { QUEUE_BYTES = 1 << 20, MOST_PATIENCE_NS = 2000000, SECOND_NS = 1000000000 };

#ifdef __linux__

/* Sleeps while the entry's turn is `seen`, at most that long if it is 0 or more. */
static void sleep_on(append_entry *entry, uint32_t seen, int64_t nanoseconds)
{
    const struct timespec most = {nanoseconds / SECOND_NS, nanoseconds % SECOND_NS};
    syscall(SYS_futex, &entry->turn, FUTEX_WAIT_PRIVATE, seen, nanoseconds < 0 ? NULL : &most, NULL, 0);
}

/* The thread may be gone, and its entry with it, as soon as the turn is set: that wakes nobody, or one for nothing. */
static void set_turn(append_entry *entry, uint32_t turn)
{
    _Atomic uint32_t *word = &entry->turn;
    atomic_store(word, turn);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND_NS + now.tv_nsec;
}

static int sync_data(int file)
{
    int result;
    do result = fdatasync(file);
    while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

/* Buffers are allocated for the first append that waits. */
static int has_buffers(append_writer *writer)
{
    if (writer->filling.data == NULL) writer->filling.data = malloc(QUEUE_BYTES);
    if (writer->writing.data == NULL) writer->writing.data = malloc(QUEUE_BYTES);
    writer->filling.size_bytes = writer->writing.size_bytes = QUEUE_BYTES;
    return writer->filling.data != NULL && writer->writing.data != NULL;
}

/* Encodes the record after those that wait, and queues it. */
static int enter(append_writer *writer, const append_record *record, append_entry *mine)
{
    append_state after;

    if (!writer->is_armed || writer->is_busy || writer->state.timed_records > 0 || !has_buffers(writer)) return 0;
    if (writer->to.kind >= RECORD_CHUNK && writer->leader != NULL) return 0; /* a group is one chunk or batch */
    const append_buffer out = {writer->filling.data + writer->filled_bytes, QUEUE_BYTES - writer->filled_bytes};
    if (writer->entries == 0 && writer->leader == NULL) writer->queued = writer->state;
    const int64_t size = duramen_encode_next(&writer->to, &writer->limits, &writer->queued, record, out, &after);
    if (size < 0 || size > writer->to.buffer_bytes || after.position > writer->limits.synced_position) return 0;

    mine->offset = writer->queued.next_offset;
    writer->queued = after;
    writer->filled_bytes += size;
    if (writer->last == NULL) writer->first = mine;
    else writer->last->next = mine;
    writer->last = mine;
    writer->entries++;
    if (writer->leader == NULL) {
        writer->leader = mine;
        atomic_store(&mine->turn, ENTRY_LEADS);
    } else if (writer->is_patient && writer->entries >= writer->crowd) { /* the leader need not be woken for it */
        writer->is_patient = 0;
        atomic_store(&writer->leader->turn, ENTRY_WAITS);
        writer->leader = mine;
        atomic_store(&mine->turn, ENTRY_LEADS);
    }
    return 1;
}

/* Waits for the threads of the last group. */
static void await_crowd(append_writer *writer, append_entry *mine)
{
    if (writer->entries >= writer->crowd || writer->patience_ns <= 0 || !writer->is_armed) return;
    const int64_t until_ns = now_ns() + writer->patience_ns;
    writer->is_patient = 1;
    for (;;) {
        const int64_t left_ns = until_ns - now_ns();
        if (writer->leader != mine || !writer->is_armed || left_ns <= 0) break;
        pthread_mutex_unlock(&writer->mutex);
        sleep_on(mine, ENTRY_LEADS, left_ns);
        pthread_mutex_lock(&writer->mutex);
    }
    if (writer->leader == mine) writer->is_patient = 0;
}

/* Writes and syncs a group, and stores its watermark. Called by the leader, without the mutex. */
static int commit(append_writer *writer, append_buffer group, append_state *after, append_entry *mine)
{
    const append_target *to = &writer->to;
    const append_state *before = &writer->state;

    if (!duramen_is_in_place(to)) return APPEND_NOT_DONE;
    const ssize_t written = pwrite(to->file, group.data, (size_t)group.size_bytes, (off_t)before->position);
    if (written != group.size_bytes) return APPEND_TORN;
    const double began_s = duramen_monotonic_s();
    writer->sync_errno = sync_data(to->file);
    if (writer->sync_errno != 0) return APPEND_UNSYNCED;
    mine->sync_s = duramen_monotonic_s() - began_s;
    after->number = before->number + 1;
    after->counter = before->counter + 1;
    after->index_position = to->index >= 0 ? duramen_put_entry(to, before) : before->index_position;
    if (to->has_digest) after->crc32c = duramen_crc32c(before->crc32c, group.data, (size_t)group.size_bytes);
    after->durable_position = after->position;
    after->durable_offset = after->next_offset;
    after->durable_crc32c = after->crc32c;
    duramen_put_mark(writer->mark, after);
    if (!duramen_is_whole(to)) return APPEND_UNMARKED;
    if (pwrite(to->page, writer->mark, MARK_BYTES, 0) != MARK_BYTES) return APPEND_UNMARKED;
    duramen_wake_readers(to);
    return APPEND_DONE;
}

/* Takes note of what the leader did. */
static void settle(append_writer *writer, int result, const append_state *after, const append_entry *mine)
{
    if (result == APPEND_DONE || result == APPEND_UNMARKED) {
        if (writer->to.index >= 0 && after->index_position == writer->state.index_position) writer->is_armed = 0;
        writer->state = *after;
    }
    if (result == APPEND_DONE) {
        writer->seen = *after;
        writer->is_seen = 1;
        return;
    }
    if (result == APPEND_TORN) writer->is_torn = 1;
    if (result == APPEND_UNMARKED) {
        writer->unmarked_records = mine->group_records;
        writer->unmarked_bytes = mine->group_bytes;
    }
    writer->is_armed = 0; /* the last: another thread may look at all of it without the mutex */
}

/* Sets the result of all entries but `mine`, and returns the first one, whose thread is to be woken. Each lets the next
 * one go on, because all at once would only contend. */
static append_entry *finish(append_entry *group, const append_entry *mine, int result)
{
    append_entry *first = NULL, *last = NULL;
    for (append_entry *entry = group, *next; entry != NULL; entry = next) {
        next = entry->next;
        entry->next = NULL;
        entry->result = result;
        if (entry == mine) continue;
        if (last == NULL) first = entry;
        else last->next = entry;
        last = entry;
    }
    return first;
}

/* Commits everything that waits, unless another thread took the lead meanwhile. */
static void lead(append_writer *writer, append_entry *mine)
{
    await_crowd(writer, mine);
    if (writer->leader != mine) return;
    append_entry *group = writer->first;
    append_state after = writer->queued;
    const append_buffer taken = {writer->filling.data, writer->filled_bytes}, other = writer->writing;
    mine->group_records = writer->entries;
    mine->group_bytes = writer->filled_bytes;
    writer->writing = writer->filling;
    writer->filling = other;
    writer->first = writer->last = NULL;
    writer->entries = writer->filled_bytes = 0;
    const int is_over = writer->is_retired;
    pthread_mutex_unlock(&writer->mutex);
    const int64_t began_ns = now_ns();
    const int result = is_over ? APPEND_NOT_DONE : commit(writer, taken, &after, mine);
    const int64_t patience_ns = now_ns() - began_ns;
    pthread_mutex_lock(&writer->mutex);

    settle(writer, result, &after, mine);
    writer->patience_ns = patience_ns < MOST_PATIENCE_NS ? patience_ns : MOST_PATIENCE_NS;
    writer->crowd = mine->group_records + writer->entries;
    append_entry *refused = NULL;
    if (result != APPEND_DONE) { /* what waits was encoded after what was not written */
        refused = finish(writer->first, NULL, APPEND_NOT_DONE);
        writer->first = writer->last = NULL;
        writer->entries = writer->filled_bytes = 0;
    }
    append_entry *const following = writer->leader = writer->first;
    if (following == NULL) pthread_cond_broadcast(&writer->drained);
    append_entry *const first = finish(group, mine, result);
    pthread_mutex_unlock(&writer->mutex);
    if (following != NULL) set_turn(following, ENTRY_LEADS);
    if (first != NULL) set_turn(first, ENTRY_ENDED);
    if (refused != NULL) set_turn(refused, ENTRY_ENDED);
    pthread_mutex_lock(&writer->mutex);
    atomic_store(&mine->turn, ENTRY_ENDED);
}

int duramen_append_durably(append_writer *writer, const append_record *record, append_entry *mine)
{
    if (getpid() != writer->to.process) return APPEND_NOT_DONE; /* a forked child: the mutex may be locked for ever */
    mine->next = NULL;
    mine->group_records = 0;
    atomic_init(&mine->turn, ENTRY_WAITS);
    pthread_mutex_lock(&writer->mutex);
    if (!enter(writer, record, mine)) {
        pthread_mutex_unlock(&writer->mutex);
        return APPEND_NOT_DONE;
    }
    pthread_mutex_unlock(&writer->mutex);
    for (uint32_t turn; (turn = atomic_load(&mine->turn)) != ENTRY_ENDED;) {
        if (turn == ENTRY_WAITS) {
            sleep_on(mine, ENTRY_WAITS, -1);
            continue;
        }
        pthread_mutex_lock(&writer->mutex);
        if (writer->leader == mine) lead(writer, mine);
        pthread_mutex_unlock(&writer->mutex);
    }
    if (mine->result == APPEND_NOT_DONE) duramen_release(mine);
    return mine->result;
}

static int publish(const append_target *to, uint8_t *page, int64_t page_bytes, int syncs, int *error, double *sync_s)
{
    const double began_s = duramen_monotonic_s();
    uint32_t counter;

    if (syncs > 0) *error = sync_data(to->file);
    if (syncs > 1 && *error == 0) *error = -sync_data(to->page);
    *sync_s = duramen_monotonic_s() - began_s;
    if (*error != 0) return APPEND_UNSYNCED;
    if (!duramen_is_in_place(to) || (syncs > 0 && !duramen_is_whole(to))) return APPEND_NOT_DONE;
    if (pread(to->page, &counter, MARK_COUNTER_BYTES, 0) != MARK_COUNTER_BYTES) return APPEND_NOT_DONE;
    counter++;
    memcpy(page, &counter, MARK_COUNTER_BYTES);
    if (pwrite(to->page, page, (size_t)page_bytes, 0) != page_bytes) return APPEND_NOT_DONE;
    duramen_wake_readers(to);
    return APPEND_DONE;
}

int duramen_publish(append_writer *writer, uint8_t *page, int64_t page_bytes, int syncs, int *error, double *sync_s)
{
    if (getpid() != writer->to.process) return APPEND_NOT_DONE;
    pthread_mutex_lock(&writer->mutex);
    const int is_free = !writer->is_retired && !writer->is_armed && duramen_is_unused(writer);
    if (is_free) writer->is_busy = 1; /* keeps the files open */
    pthread_mutex_unlock(&writer->mutex);
    if (!is_free) return APPEND_NOT_DONE;
    *error = 0;
    const int result = publish(&writer->to, page, page_bytes, syncs, error, sync_s);
    pthread_mutex_lock(&writer->mutex);
    writer->is_busy = 0;
    pthread_mutex_unlock(&writer->mutex);
    return result;
}

#else /* other systems need more than fdatasync */

static void set_turn(append_entry *entry, uint32_t turn)
{
    (void)entry, (void)turn;
}

int duramen_append_durably(append_writer *writer, const append_record *record, append_entry *mine)
{
    (void)writer, (void)record, (void)mine;
    return APPEND_NOT_DONE;
}

int duramen_publish(append_writer *writer, uint8_t *page, int64_t page_bytes, int syncs, int *error, double *sync_s)
{
    (void)writer, (void)page, (void)page_bytes, (void)syncs, (void)error, (void)sync_s;
    return APPEND_NOT_DONE;
}

#endif

void duramen_release(append_entry *mine)
{
    if (mine->next != NULL) set_turn(mine->next, ENTRY_ENDED);
}

int duramen_append_alone(append_writer *writer, const append_record *record, int64_t *offset, int64_t *size)
{
    append_state after;

    pthread_mutex_lock(&writer->mutex);
    const int is_free = writer->is_armed && !writer->is_busy && duramen_is_unused(writer);
    if (is_free) writer->is_busy = 1;
    pthread_mutex_unlock(&writer->mutex);
    if (!is_free) return APPEND_NOT_DONE;
    const int result = duramen_append(&writer->to, &writer->limits, &writer->state, record, writer->mark, &after);
    pthread_mutex_lock(&writer->mutex);
    writer->is_busy = 0;
    if (result == APPEND_TORN) writer->is_torn = 1;
    if (result == APPEND_DONE || result == APPEND_UNMARKED) {
        *offset = after.next_offset - 1;
        *size = after.position - writer->state.position;
        if (writer->to.index >= 0 && after.index_position == writer->state.index_position) writer->is_armed = 0;
        writer->state = after;
    }
    if (result == APPEND_DONE) {
        writer->seen = after;
        writer->is_seen = 1;
    }
    if (result == APPEND_UNMARKED) {
        writer->unmarked_records = 1;
        writer->unmarked_bytes = *size;
    }
    if (result == APPEND_TORN || result == APPEND_UNMARKED) writer->is_armed = 0;
    pthread_mutex_unlock(&writer->mutex);
    return result;
}

void duramen_drain(append_writer *writer)
{
    pthread_mutex_lock(&writer->mutex);
    writer->is_armed = 0;
    if (writer->is_patient) set_turn(writer->leader, ENTRY_LEADS);
    while (writer->leader != NULL) pthread_cond_wait(&writer->drained, &writer->mutex);
    pthread_mutex_unlock(&writer->mutex);
}

int duramen_is_unused(const append_writer *writer)
{
    return !writer->is_busy && writer->leader == NULL && writer->entries == 0;
}

int duramen_open_writer(append_writer *writer)
{
    const int error = pthread_mutex_init(&writer->mutex, NULL);
    return error != 0 ? error : pthread_cond_init(&writer->drained, NULL);
}

void duramen_free_writer(append_writer *writer)
{
    free(writer->filling.data);
    free(writer->writing.data);
    pthread_cond_destroy(&writer->drained);
    pthread_mutex_destroy(&writer->mutex);
}

/* Single appends at `fsync`, by any number of threads at once: one write, one sync and one watermark for all that wait.
 *
 * A thread encodes its record after those that wait. The first one leads: it takes everything that waits, writes and
 * syncs it, stores the watermark, and gives the lead to the first thread that queued meanwhile. A new leader waits a
 * moment for the threads of the last group to come back, as in log/write/group_commit.py; the thread that completes the
 * crowd takes the lead.
 *
 * The mutex guards all fields; the leader releases it while it writes.
 */
#ifndef DURAMEN_APPEND_QUEUE_H
#define DURAMEN_APPEND_QUEUE_H

#include "append.h"
#include <pthread.h>
#include <stdatomic.h>

/* A record that waits; on the stack of its thread. */
typedef struct append_entry {
    _Atomic uint32_t turn; /* its thread sleeps while it is ENTRY_WAITS */
    int result;
    int64_t offset;
    struct append_entry *next;
    /* Of the leader. */
    int64_t group_records, group_bytes;
    double sync_s;
} append_entry;

enum { ENTRY_WAITS = 0, ENTRY_LEADS = 1, ENTRY_ENDED = 2 };

typedef struct {
    append_target to;
    append_limits limits;
    append_state state;            /* after the last record that is written */
    uint8_t mark[MARK_BYTES];      /* what was stored last, or what the writer was armed with */
    append_state seen;             /* what readers see */
    int is_seen;                   /* whether anything was stored since it was armed */
    int is_armed, is_retired;
    int is_busy;                   /* a thread appends without the queue */
    int is_torn;                   /* a part of one more record may be written */
    int sync_errno;                /* of the sync that failed */
    int64_t unmarked_records, unmarked_bytes;

    pthread_mutex_t mutex;
    pthread_cond_t drained;
    append_state queued;           /* after the last record that waits */
    append_entry *first, *last, *leader;
    int64_t entries, crowd, patience_ns;
    int is_patient;                /* the leader waits for more */
    append_buffer filling, writing;
    int64_t filled_bytes;
} append_writer;

/* Returns 0, or an error number. */
int duramen_open_writer(append_writer *writer);
void duramen_free_writer(append_writer *writer);

/* Appends a record at `write` or `interval`; see duramen_append. NOT_DONE while a thread is in the queue. */
int duramen_append_alone(append_writer *writer, const append_record *record, int64_t *offset, int64_t *size);

/* Appends a record and returns when it is on the disk. Unless the result is APPEND_NOT_DONE, `duramen_release` must
 * follow, which lets the next thread of the group go on: best when the caller holds what they would wait for. */
int duramen_append_durably(append_writer *writer, const append_record *record, append_entry *mine);
void duramen_release(append_entry *mine);

/* Publishes what ordinary appends wrote: syncs the segment (`syncs` 1), and what the page holds before it is stored over
 * (2), and stores the page, whose first bytes are for the counter. APPEND_UNSYNCED sets `error`, negative if
 * the page failed. NOT_DONE: the page is not stored. */
int duramen_publish(append_writer *writer, uint8_t *page, int64_t page_bytes, int syncs, int *error, double *sync_s);

/* Ends the appends, and returns when no thread is in the queue. */
void duramen_drain(append_writer *writer);

/* Whether no thread appends. */
int duramen_is_unused(const append_writer *writer);

#endif

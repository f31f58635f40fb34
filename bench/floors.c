/* Threads that append records of one size to a file, each returning when its record is on the disk: they share writes and
 * syncs through one mutex and one condition. Prints records per second. With FILL_BYTES, so many zeros are written ahead
 * whenever the records reach their end; PROOF 1 also overwrites a page of a second file, and syncs it.
 * Usage: floors FILE THREADS RECORD_BYTES SECONDS FILL_BYTES PROOF */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 256 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static char *filling, *writing, *record;
static size_t record_bytes, filled;
static long long group, durable_group, records; /* `filling` is of `group`; groups up to `durable_group` are synced */
static int file, proof = -1, is_syncing;
static off_t position, filled_until, fill_bytes;
static char *zeros;
static double until;

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void commit(void)
{
    char *const data = filling;
    const size_t size = filled;
    filling = writing;
    writing = data;
    filled = 0;
    const long long mine = group++;
    is_syncing = 1;
    pthread_mutex_unlock(&mutex);
    if (pwrite(file, data, size, position) != (ssize_t)size) abort();
    position += (off_t)size;
    if (fill_bytes > 0 && position > filled_until) {
        if (pwrite(file, zeros, (size_t)fill_bytes, position) != fill_bytes) abort();
        filled_until = position + fill_bytes;
    }
    if (proof >= 0 && pwrite(proof, zeros, 256, 0) != 256) abort();
    if (fdatasync(file) != 0 || (proof >= 0 && fdatasync(proof) != 0)) abort();
    pthread_mutex_lock(&mutex);
    is_syncing = 0;
    durable_group = mine;
    pthread_cond_broadcast(&ended);
}

static void *append(void *unused)
{
    pthread_mutex_lock(&mutex);
    while (now() < until) {
        memcpy(filling + filled, record, record_bytes);
        filled += record_bytes;
        records++;
        const long long mine = group;
        while (durable_group < mine) {
            if (!is_syncing && mine == group) commit();
            else pthread_cond_wait(&ended, &mutex);
        }
    }
    pthread_mutex_unlock(&mutex);
    return unused;
}

int main(int count, char **words)
{
    pthread_t threads[MOST_THREADS];
    if (count != 7) return 2;
    const int wanted = atoi(words[2]);
    record_bytes = strtoul(words[3], NULL, 10);
    const double seconds = atof(words[4]);
    if (wanted < 1 || wanted > MOST_THREADS || record_bytes < 1 || record_bytes > 1 << 20) return 2;
    file = open(words[1], O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file < 0) return 1;
    fill_bytes = (off_t)atoll(words[5]);
    zeros = calloc(1, fill_bytes > 256 ? (size_t)fill_bytes : 256);
    char beside[4096];
    snprintf(beside, sizeof beside, "%s.proof", words[1]);
    if (atoi(words[6]) != 0) proof = open(beside, O_WRONLY | O_CREAT, 0600);
    if (zeros == NULL || (atoi(words[6]) != 0 && proof < 0)) return 1;
    filling = malloc(record_bytes * MOST_THREADS);
    writing = malloc(record_bytes * MOST_THREADS);
    record = malloc(record_bytes);
    if (filling == NULL || writing == NULL || record == NULL) return 1;
    memset(record, 'x', record_bytes);
    durable_group = -1;
    until = now() + seconds;
    for (int thread = 0; thread < wanted; thread++)
        if (pthread_create(&threads[thread], NULL, append, NULL) != 0) return 1;
    for (int thread = 0; thread < wanted; thread++) pthread_join(threads[thread], NULL);
    printf("%.1f\n", (double)records / seconds);
    return 0;
}

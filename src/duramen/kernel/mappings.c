#define _DEFAULT_SOURCE
#include "mappings.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

enum { BLOCK_GUARDS = 256 };

/* The handler reads these at any moment: a block is never freed, and a guard counts from when its `end` is set until it is
 * 0 again. No lock: a process may fork while another thread maps a file. */
struct guard {
    _Atomic uintptr_t start; /* 0: free, 1: being set */
    _Atomic uintptr_t end;
    _Atomic int64_t lost_at;
};

struct block {
    struct guard guards[BLOCK_GUARDS];
    struct block *_Atomic next;
};

static struct block first;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sigaction previous;
static uintptr_t page_bytes;
static int installed;

static struct guard *guard_at(uintptr_t address)
{
    for (struct block *block = &first; block != NULL; block = atomic_load(&block->next))
        for (int i = 0; i < BLOCK_GUARDS; i++) {
            struct guard *guard = &block->guards[i];
            if (address < atomic_load(&guard->end) && address >= atomic_load(&guard->start)) return guard;
        }
    return NULL;
}

static int put_zeros(struct guard *guard, uintptr_t address)
{
    const uintptr_t start = atomic_load(&guard->start), from = address / page_bytes * page_bytes;
    const int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (mmap((void *)from, atomic_load(&guard->end) - from, PROT_READ, flags, -1, 0) == MAP_FAILED) return 0;
    int64_t at = from > start ? (int64_t)(from - start) : 0, known = atomic_load(&guard->lost_at);
    while ((known < 0 || at < known) && !atomic_compare_exchange_weak(&guard->lost_at, &known, at)) {}
    return 1;
}

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    const int saved = errno;
    /* Only a fault of memory has an address; a signal that a process sent has not. */
    struct guard *guard = info->si_code > 0 ? guard_at((uintptr_t)info->si_addr) : NULL;
    if (guard != NULL && put_zeros(guard, (uintptr_t)info->si_addr)) {
        errno = saved;
        return;
    }
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
    } else if (info->si_code > 0 || previous.sa_handler == SIG_DFL) {
        /* An access that faults cannot be ignored: it is repeated on return, and ends the process. */
        struct sigaction usual;
        memset(&usual, 0, sizeof usual);
        usual.sa_handler = SIG_DFL;
        sigaction(number, &usual, NULL);
        if (info->si_code <= 0) raise(number);
    }
    errno = saved;
}

static void install(void)
{
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, NULL, &previous) == 0) installed = sigaction(SIGBUS, &action, NULL) == 0;
}

static struct guard *numbered(int64_t number)
{
    struct block *block = &first;
    for (; number >= BLOCK_GUARDS; number -= BLOCK_GUARDS) block = atomic_load(&block->next);
    return &block->guards[number % BLOCK_GUARDS];
}

static struct block *block_after(struct block *block)
{
    struct block *next = atomic_load(&block->next);
    if (next != NULL) return next;
    struct block *made = calloc(1, sizeof *made);
    if (made == NULL || atomic_compare_exchange_strong(&block->next, &next, made)) return made;
    free(made);
    return next;
}

static int64_t take_guard(void)
{
    int64_t number = 0;
    for (struct block *block = &first; block != NULL; block = block_after(block))
        for (int i = 0; i < BLOCK_GUARDS; i++, number++) {
            uintptr_t is_free = 0;
            if (atomic_compare_exchange_strong(&block->guards[i].start, &is_free, 1)) return number;
        }
    return -1;
}

int64_t duramen_guard(const uint8_t *data, int64_t size_bytes)
{
    pthread_once(&once, install);
    const int64_t number = installed && size_bytes > 0 ? take_guard() : -1;
    if (number < 0) return -1;
    struct guard *guard = numbered(number);
    const uintptr_t end = (uintptr_t)data + (uintptr_t)size_bytes;
    atomic_store(&guard->lost_at, -1);
    atomic_store(&guard->start, (uintptr_t)data);
    atomic_store(&guard->end, (end + page_bytes - 1) / page_bytes * page_bytes);
    return number;
}

int64_t duramen_lost_at(int64_t number)
{
    return number < 0 ? -1 : atomic_load(&numbered(number)->lost_at);
}

void duramen_unguard(int64_t number)
{
    if (number < 0) return;
    atomic_store(&numbered(number)->end, 0);
    atomic_store(&numbered(number)->start, 0);
}

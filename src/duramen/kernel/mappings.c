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

/* What handled the signal before: never changed, never freed, so that the handler may read it at any moment. */
struct earlier {
    struct sigaction action;
    struct earlier *older;
};

static struct block first;
static struct earlier *_Atomic all_earlier;
static struct earlier *_Atomic previous;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uintptr_t page_bytes;
static _Thread_local int is_handed_over;

/* Other threads may be giving guards up and setting them for other mappings. That of the faulting address stays as it is
 * while the address is read: what has the same start before and after its end was read is that one, or does not hold it. */
static struct guard *guard_at(uintptr_t address, uintptr_t *start, uintptr_t *end)
{
    for (struct block *block = &first; block != NULL; block = atomic_load(&block->next))
        for (int i = 0; i < BLOCK_GUARDS; i++) {
            struct guard *guard = &block->guards[i];
            *start = atomic_load(&guard->start);
            *end = atomic_load(&guard->end);
            if (*start <= 1 || address < *start || address >= *end) continue;
            if (atomic_load(&guard->start) == *start) return guard;
        }
    return NULL;
}

static int put_zeros(uintptr_t address)
{
    uintptr_t start, end;
    struct guard *guard = guard_at(address, &start, &end);
    if (guard == NULL) return 0;
    const uintptr_t from = address / page_bytes * page_bytes;
    const int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (mmap((void *)from, end - from, PROT_READ, flags, -1, 0) == MAP_FAILED) return 0;
    int64_t at = from > start ? (int64_t)(from - start) : 0, known = atomic_load(&guard->lost_at);
    while ((known < 0 || at < known) && !atomic_compare_exchange_weak(&guard->lost_at, &known, at)) {}
    return 1;
}

static int is_raised_again(int number)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, number) == 1;
}

/* Whether the handler before this one dealt with the signal. It may hand it back, or raise it again. */
static int hand_over(const struct sigaction *before, int number, siginfo_t *info, void *context)
{
    const int is_fault = info->si_code > 0;
    if (before->sa_flags & SA_SIGINFO) {
        if (is_handed_over) return 0;
        is_handed_over = 1;
        before->sa_sigaction(number, info, context);
        is_handed_over = 0;
        return 1;
    }
    if (before->sa_handler == SIG_DFL) return 0;
    if (before->sa_handler != SIG_IGN) before->sa_handler(number);
    /* It has not got the address, so it cannot have mended the access, which is repeated on return. */
    return !is_fault && !is_raised_again(number);
}

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    const int saved = errno;
    /* Only a fault of memory has an address; a signal that a process sent has not. */
    if (info->si_code > 0 && put_zeros((uintptr_t)info->si_addr)) {
        errno = saved;
        return;
    }
    if (!hand_over(&atomic_load(&previous)->action, number, info, context)) {
        struct sigaction usual;
        memset(&usual, 0, sizeof usual);
        usual.sa_handler = SIG_DFL;
        sigaction(number, &usual, NULL);
        if (info->si_code <= 0) raise(number);
    }
    errno = saved;
}

static void find_page_bytes(void)
{
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
}

static int is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_sigbus;
}

static int is_same(const struct sigaction *one, const struct sigaction *other)
{
    if ((one->sa_flags & SA_SIGINFO) != (other->sa_flags & SA_SIGINFO)) return 0;
    return one->sa_flags & SA_SIGINFO ? one->sa_sigaction == other->sa_sigaction : one->sa_handler == other->sa_handler;
}

static struct earlier *kept(const struct sigaction *action)
{
    struct earlier *newest = atomic_load(&all_earlier);
    for (struct earlier *one = newest; one != NULL; one = one->older)
        if (is_same(&one->action, action)) return one;
    struct earlier *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->action = *action;
    made->older = newest;
    while (!atomic_compare_exchange_weak(&all_earlier, &made->older, made)) {}
    return made;
}

/* For every mapping: others may have replaced the handler since, or removed it with their own, as faulthandler does. */
static int install(void)
{
    struct sigaction now, action;
    if (sigaction(SIGBUS, NULL, &now) != 0) return 0;
    if (is_ours(&now)) return 1;
    struct earlier *before = kept(&now);
    if (before == NULL) return 0;
    atomic_store(&previous, before);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL) == 0;
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
    pthread_once(&once, find_page_bytes);
    const int64_t number = size_bytes > 0 && install() ? take_guard() : -1;
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

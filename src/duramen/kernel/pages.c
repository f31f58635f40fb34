#define _DEFAULT_SOURCE
#include "pages.h"

#include <stddef.h>

#include "bytes.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#define AROUND_BYTES ((uintptr_t)2 << 20)

static _Thread_local const uint8_t *mapped_from, *mapped_to;

void duramen_mapped_begin(const uint8_t *buf, int64_t bytes)
{
    mapped_from = buf;
    mapped_to = buf + bytes;
}

void duramen_mapped_end(void)
{
    mapped_from = mapped_to = NULL;
}

void duramen_passed(const uint8_t *from, const uint8_t *to)
{
#ifdef __linux__
    if (mapped_from == NULL || from < mapped_from || to > mapped_to || to <= from) return;
    /* One access may bring in everything up to the next 2 MiB on either side: what was dropped before comes back with
     * it, so a little more than what was passed is dropped. */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t lowest = ((uintptr_t)mapped_from + page - 1) / page * page;
    const uintptr_t around = (uintptr_t)from / AROUND_BYTES * AROUND_BYTES;
    const uintptr_t first = around > lowest ? around : lowest;
    const uintptr_t end = (uintptr_t)to / page * page;
    if (first < end) madvise((void *)first, end - first, MADV_DONTNEED);
#else
    (void)from;
    (void)to;
#endif
}

int duramen_long_zero(const uint8_t *p, int64_t len)
{
    while (len > PASS_BYTES) {
        if (!all_zero(p, PASS_BYTES)) return 0;
        duramen_passed(p, p + PASS_BYTES);
        p += PASS_BYTES;
        len -= PASS_BYTES;
    }
    return all_zero(p, len);
}

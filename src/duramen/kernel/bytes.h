/* Reading and writing integers in a buffer, and the result that every scan returns.
 * Nothing here checks a bound: callers check what remains before they read. */
#ifndef DURAMEN_BYTES_H
#define DURAMEN_BYTES_H

#include "pages.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The numbers of layout.Stop. */
enum duramen_stop {
    STOP_END = 0,
    STOP_LIMIT = 1,
    STOP_ZEROS = 2,
    STOP_SHORT_HEADER = 3,
    STOP_SHORT_BODY = 4,
    STOP_BAD_MAGIC = 5,
    STOP_BAD_VERSION = 6,
    STOP_BAD_FIELD = 7,
    STOP_BAD_LENGTH = 8,
    STOP_BAD_RANGE = 9,
    STOP_BAD_ORDER = 10,
    STOP_BAD_CHECKSUM = 11,
    STOP_BAD_ENTRIES = 12
};

typedef struct {
    int64_t count;
    int64_t position;
    int64_t stop;
    int64_t last_offset;
} duramen_scan_end;

/* Results of find_*. */
#define DURAMEN_NOT_FOUND (-1)
#define DURAMEN_GAVE_UP (-2)

static inline uint16_t load16be(const uint8_t *p) { return (uint16_t)((p[0] << 8) | p[1]); }

static inline uint32_t load32(const uint8_t *p, int big)
{
    uint32_t v;
    memcpy(&v, p, 4);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return big ? __builtin_bswap32(v) : v;
#else
    return big ? v : __builtin_bswap32(v);
#endif
}

static inline uint64_t load64(const uint8_t *p, int big)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return big ? __builtin_bswap64(v) : v;
#else
    return big ? v : __builtin_bswap64(v);
#endif
}

static inline uint64_t load_uint(const uint8_t *p, int64_t width, int big)
{
    uint64_t v = 0;
    for (int64_t i = 0; i < width; i++) {
        int64_t at = big ? i : width - 1 - i;
        v = (v << 8) | p[at];
    }
    return v;
}

static inline void store32(uint8_t *p, uint32_t v, int big)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (big) v = __builtin_bswap32(v);
#else
    if (!big) v = __builtin_bswap32(v);
#endif
    memcpy(p, &v, 4);
}

static inline void store64(uint8_t *p, uint64_t v, int big)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (big) v = __builtin_bswap64(v);
#else
    if (!big) v = __builtin_bswap64(v);
#endif
    memcpy(p, &v, 8);
}

static inline void store_uint(uint8_t *p, uint64_t v, int64_t width, int big)
{
    for (int64_t i = 0; i < width; i++) {
        int64_t at = big ? width - 1 - i : i;
        p[at] = (uint8_t)v;
        v >>= 8;
    }
}

/* The values of rows that are encoded: each wherever it lies, or, where `pointers` is NULL, Arrow's offsets into one
 * buffer, which may make no sense. */
typedef struct {
    int64_t count;
    const uint8_t *const *pointers;
    const int64_t *lengths;
    const uint8_t *data;
    int64_t data_bytes;
    const int32_t *offsets;
} duramen_values;

/* Where a scan puts the values it passes, one after another: value `row` between offsets[row] and offsets[row + 1].
 * `offsets` has one more than the scan's capacity. */
typedef struct {
    uint8_t *data;
    int64_t data_bytes;
    int32_t *offsets;
} duramen_value_room;

/* How many bytes of values fit: Arrow's offsets have 31 bits. */
static inline int64_t bytes_for_values(const duramen_value_room *room)
{
    return room == NULL ? 0 : room->data_bytes < INT32_MAX ? room->data_bytes : INT32_MAX;
}

#define FORESEEN_BYTES 2048

/* Where the value of a row lies; 0 where its offsets point out of the buffer. */
static inline int value_at(const duramen_values *values, int64_t row, const uint8_t **value, int64_t *len)
{
    if (values->pointers != NULL) {
        *value = values->pointers[row];
        *len = values->lengths[row];
        return 1;
    }
    const int64_t from = values->offsets[row];
    *len = (int64_t)values->offsets[row + 1] - from;
    if (from < 0 || *len < 0 || *len > values->data_bytes - from) return 0;
    *value = *len > 0 ? values->data + from : values->data;
    return 1;
}

/* Asks for a value that will be copied soon: values that lie anywhere are out of the processor's sight. */
static inline void foresee(const duramen_values *values, int64_t row)
{
    if (values->pointers == NULL || row >= values->count) return;
    const uint8_t *value = values->pointers[row];
    const int64_t len = values->lengths[row] < FORESEEN_BYTES ? values->lengths[row] : FORESEEN_BYTES;
    for (int64_t at = 0; at < len; at += 64) __builtin_prefetch(value + at);
}

static inline int all_zero(const uint8_t *p, int64_t len)
{
    if (len > PASS_BYTES) return duramen_long_zero(p, len);
    while (len >= 32) {
        uint64_t a, b, c, d;
        memcpy(&a, p, 8);
        memcpy(&b, p + 8, 8);
        memcpy(&c, p + 16, 8);
        memcpy(&d, p + 24, 8);
        if (a | b | c | d) return 0;
        p += 32;
        len -= 32;
    }
    for (; len > 0; len--, p++)
        if (*p) return 0;
    return 1;
}

/* Whether nothing but zeros follows. */
static inline int only_zeros(const uint8_t *buf, int64_t position, int64_t end)
{
    return buf[position] == 0 && all_zero(buf + position, end - position);
}

/* A search for the next valid record, chunk or batch, byte by byte. A hostile file could make every byte look like the
 * start of a huge one: `budget` is how many bytes of candidates are still looked at. */
typedef struct {
    int64_t budget, kept;
} duramen_search;

static inline duramen_search begin_search(int64_t position, int64_t end)
{
    return (duramen_search){16 * (end - position) + (1 << 20), position};
}

/* Lets go of the pages that the search has passed. */
static inline void search_on(duramen_search *search, const uint8_t *buf, int64_t position)
{
    if (position - search->kept <= PASS_BYTES) return;
    duramen_passed(buf + search->kept, buf + position);
    search->kept = position;
}

#endif

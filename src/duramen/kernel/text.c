#include "text.h"

#include <string.h>

static int is_continued(const uint8_t *p, int count)
{
    for (int at = 1; at <= count; at++)
        if ((p[at] & 0xc0) != 0x80) return 0;
    return 1;
}

/* The bytes of the character at p, or 0 where it is not UTF-8. */
static int utf8_width(const uint8_t *p, int64_t remaining)
{
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    const int more = p[0] < 0xe0 ? 1 : p[0] < 0xf0 ? 2 : 3;
    if (more >= remaining || !is_continued(p, more)) return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f)) return 0;
    if ((p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f)) return 0;
    return more + 1;
}

int duramen_is_utf8(const uint8_t *p, int64_t length)
{
    for (int64_t at = 0; at < length;) {
        uint64_t eight;
        if (length - at < 8 && p[at] < 0x80) {
            at++;
            continue;
        }
        if (length - at >= 8 && (memcpy(&eight, p + at, 8), (eight & UINT64_C(0x8080808080808080)) == 0)) {
            at += 8;
            continue;
        }
        const int width = utf8_width(p + at, length - at);
        if (width == 0) return 0;
        at += width;
    }
    return 1;
}

/* Pages of a mapped file. A pass over gigabytes must not keep all of them in memory: while the buffer of a call is known
 * to be a read-only mapping of a file, a long loop drops the pages that it has passed. Whatever reads them again gets
 * them from the file again, so that this is a hint and changes no result. */
#ifndef DURAMEN_PAGES_H
#define DURAMEN_PAGES_H

#include <stdint.h>

#define PASS_BYTES (INT64_C(4) << 20)

/* From here to `duramen_mapped_end`, the bytes of this buffer are pages of a file, for this thread. */
void duramen_mapped_begin(const uint8_t *buf, int64_t bytes);
void duramen_mapped_end(void);

/* The bytes between the two are not needed for now. Nothing happens outside of the buffer that was begun. */
void duramen_passed(const uint8_t *from, const uint8_t *to);

/* `all_zero` for many bytes. */
int duramen_long_zero(const uint8_t *p, int64_t len);

#endif

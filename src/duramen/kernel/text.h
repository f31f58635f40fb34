/* Text as bytes. */
#ifndef DURAMEN_TEXT_H
#define DURAMEN_TEXT_H

#include <stdint.h>

/* Whether the bytes are UTF-8 as Python decodes it: no longer form than needed, no surrogate. */
int duramen_is_utf8(const uint8_t *p, int64_t length);

#endif

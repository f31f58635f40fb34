/* Mapped files that may be shortened, or cannot be read, while a check reads them. The operating system then sends
 * SIGBUS, which ends the process. For a mapping that is guarded here, the handler puts pages of zeros in the place of the
 * lost ones, from the page that was accessed to the end of the mapping, and notes where. The caller asks for that note
 * after its work, and must not use the result of what read zeros.
 *
 * The handler is installed with the first guarded mapping and stays. A SIGBUS of any other address goes to the handler
 * that was installed before, or ends the process as it would have. */
#ifndef DURAMEN_MAPPINGS_H
#define DURAMEN_MAPPINGS_H

#include <stdint.h>

/* Guard a mapping. Returns its number; -1 if it cannot be guarded (no memory, no handler). */
int64_t duramen_guard(const uint8_t *data, int64_t size_bytes);

/* Where the first lost page begins, relative to the mapping; -1 if none was lost. */
int64_t duramen_lost_at(int64_t number);

/* End the guard, before the mapping ends. */
void duramen_unguard(int64_t number);

#endif

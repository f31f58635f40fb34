/* Formats of the family "fixed header, user headers, payload, trailer", driven by one table of positions.
 * Refuses to know a format: everything particular is in the frame_layout that layout.FrameLayout packs. */
#ifndef DURAMEN_FRAMES_H
#define DURAMEN_FRAMES_H

#include "bytes.h"
#include "crc.h"

typedef struct {
    int64_t position, width, value, stop;
} frame_const;

/* The order of layout.FrameLayout.packed. */
typedef struct {
    int64_t header_bytes, big_endian, offset_at, length_at, trailer_bytes;
    int64_t headers_length_at, timestamp_at, flags_at, checksum, checksum_at;
    int64_t covered_from, max_payload_bytes, const_count;
    frame_const consts[4];
} frame_layout;

enum { CHECKSUM_NONE = 0, CHECKSUM_CRC32 = 1, CHECKSUM_CRC32C = 2 };

typedef struct {
    int64_t offset, timestamp, position, value_position, next;
    uint32_t value_length, headers_length, flags;
} frame;

typedef struct {
    int64_t *offset, *timestamp, *position, *value_position;
    uint32_t *value_length, *headers_length, *flags;
} frame_columns;

/* `digests`, unless it is NULL, takes in the bytes that the scan goes over: those from `position` to where it ends.
 * `values` may be NULL. A value for which it has no room ends the scan with STOP_LIMIT, the first one, too. */
duramen_scan_end duramen_scan_frames(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                                     frame_columns *out, int64_t capacity, int64_t max_bytes,
                                     int64_t previous_offset, int verify, duramen_digests *digests,
                                     const duramen_value_room *values);

/* Walks headers, without checksums, to the first frame whose offset is `target` or above, and checks that one.
 * Returns its stop verdict; STOP_LIMIT when it was found and is whole, STOP_END when the data ended before. */
int64_t duramen_seek_frame(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                           int64_t target, int64_t previous_offset, frame *out);

/* First position >= `position` where a whole, valid frame with an offset above `previous_offset` starts. */
int64_t duramen_find_frame(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                           int64_t previous_offset);

/* Writes a frame per value. Reads offset, timestamp and flags of each row of `rows`, and fills in the other columns as
 * a scan would, positions counted from base_position. `headers` may be NULL. Returns the bytes written, or -1 - row for
 * the first row that does not fit into the buffers or the layout. */
int64_t duramen_encode_frames(uint8_t *out, int64_t capacity, const frame_layout *layout, frame_columns *rows,
                              const duramen_values *values, const duramen_values *headers, int64_t base_position);

/* Walks the ends of frames, `trailer_bytes` after their values, and picks each that lies `stride_bytes` or more after
 * the last one picked, at first after *counted_from, which becomes the end of the last one picked. Returns how many. */
int64_t duramen_pick_strides(const int64_t *value_positions, const uint32_t *value_lengths, int64_t count,
                             int64_t trailer_bytes, int64_t stride_bytes, int64_t *counted_from, int64_t *picked);

#endif

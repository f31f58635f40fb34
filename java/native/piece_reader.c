#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "piece_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "piece_rows.h"
#include "slots.h"

#define WINDOW_BYTES (INT64_C(1) << 20) /* with what is copied from it, about what the second cache holds */
#define MAX_WINDOW_BYTES (INT64_C(256) << 20)
#define CHUNK_BYTES (INT64_C(256) << 10)
#define MOST_STEPS 64

struct duramen_piece_reader {
    duramen_piece piece;
    int fd;
    uint8_t *window;
    int64_t capacity, at, filled; /* the window holds the bytes at .. at + filled of the file */
    int64_t position, previous_offset;
    int64_t bound; /* a scan ends here: the position of the watermark, then the end of the piece */
    int is_past;   /* no further record is wanted */
    int is_over;
    int64_t digest_end, digested; /* how many bytes of the file are to be digested, and have been */
    duramen_digests sums;
    piece_rows rows;
};

/* --- the file */

/* Reads exactly so many bytes, and takes them into the digests if those have come so far. */
static int read_bytes(duramen_piece_reader *r, uint8_t *into, int64_t position, int64_t len)
{
    while (len > 0) {
        const ssize_t got = pread(r->fd, into, (size_t)(len < CHUNK_BYTES ? len : CHUNK_BYTES), (off_t)position);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0; /* something cut the file, or the disk failed: Python says which */
        const int64_t until = position + got < r->digest_end ? position + got : r->digest_end;
        if (position <= r->digested && until > r->digested) {
            duramen_digest(&r->sums, into + (r->digested - position), (size_t)(until - r->digested));
            r->digested = until;
        }
        into += got;
        position += got;
        len -= got;
    }
    return 1;
}

/* Digests up to `end` without keeping the bytes. Only where the window holds nothing that is still needed. */
static int digest_to(duramen_piece_reader *r, int64_t end)
{
    r->filled = 0;
    while (r->digested < end) {
        const int64_t left = end - r->digested;
        if (!read_bytes(r, r->window, r->digested, left < r->capacity ? left : r->capacity)) return 0;
    }
    return 1;
}

/* More bytes after those of the window that are not scanned yet. */
static int refill(duramen_piece_reader *r)
{
    const int64_t rest = r->at + r->filled - r->position;
    if (rest == r->capacity) { /* a record that is longer than the window */
        if (r->capacity >= MAX_WINDOW_BYTES) return 0;
        uint8_t *more = realloc(r->window, (size_t)(4 * r->capacity));
        if (more == NULL) return 0;
        r->window = more;
        r->capacity *= 4;
    }
    if (rest > 0) memmove(r->window, r->window + (r->position - r->at), (size_t)rest);
    r->at = r->position;
    r->filled = rest;
    const int64_t room = r->capacity - rest, left = r->piece.end - r->at - rest;
    const int64_t wanted = room < left ? room : left;
    if (wanted <= 0 || !read_bytes(r, r->window + rest, r->at + rest, wanted)) return 0;
    r->filled += wanted;
    return 1;
}

/* --- opening */

static int is_within(int64_t at, int64_t width, int64_t end) { return at >= -1 && at <= end - width; }

/* As FrameLayout checks it. */
static int is_sound_layout(const frame_layout *f)
{
    const int64_t end = f->header_bytes;
    if (end < 1 || end > 4096 || f->const_count < 0 || f->const_count > 4 || f->offset_at < 0 || f->length_at < 0)
        return 0;
    if (!is_within(f->offset_at, 8, end) || !is_within(f->length_at, 4, end) || !is_within(f->timestamp_at, 8, end) ||
        !is_within(f->headers_length_at, 4, end) || !is_within(f->flags_at, 4, end) ||
        !is_within(f->checksum_at, 4, end))
        return 0;
    for (int64_t i = 0; i < f->const_count; i++) {
        const frame_const *c = &f->consts[i];
        if (c->position < 0 || c->width < 1 || c->width > 8 || !is_within(c->position, c->width, end) ||
            c->stop < STOP_SHORT_HEADER)
            return 0;
    }
    if (f->covered_from < 0 || f->covered_from > end || f->trailer_bytes < 0 || f->trailer_bytes > 4096) return 0;
    return f->checksum == CHECKSUM_NONE || f->checksum_at >= 0 || f->trailer_bytes >= 4;
}

static int is_sound(const duramen_piece *p)
{
    if (p->start < 0 || p->end < p->start || p->visible_bytes < p->end || p->visible_bytes > INT32_MAX) return 0;
    if (p->previous_offset < -1 || p->time_unit_us < 0 || p->head_bytes < 0 || p->head_bytes > CHUNK_BYTES) return 0;
    if (p->mark_position > p->visible_bytes || p->sealed_bytes > (INT64_C(1) << 50)) return 0;
    if (p->kind == PIECE_FRAMES) return is_sound_layout(&p->layout);
    if (p->kind == PIECE_CHUNKS || p->kind == PIECE_BATCHES) return 1;
    if (p->kind != PIECE_SLOTS || p->record_bytes < 1 || p->record_bytes > WINDOW_BYTES - 4) return 0;
    return p->start % (p->record_bytes + 4) == 0;
}

static int make_room(duramen_piece_reader *r)
{
    r->capacity = WINDOW_BYTES;
    r->window = malloc((size_t)r->capacity);
    return r->window != NULL && make_piece_rows(&r->rows, r->piece.kind);
}

static int is_file_as_planned(duramen_piece_reader *r, const char *path)
{
    struct stat st;
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* which a FIFO of that name would wait for */
    if (r->fd < 0 || fstat(r->fd, &st) != 0 || !S_ISREG(st.st_mode)) return 0;
    if (st.st_size < r->piece.visible_bytes) return 0;
    return r->piece.sealed_bytes < 0 || st.st_size == r->piece.sealed_bytes;
}

/* The bytes before the first record, of which the whole file's digest may begin. */
static int is_head_as_planned(duramen_piece_reader *r)
{
    const duramen_piece *p = &r->piece;
    if (p->head_bytes > 0) {
        if (!read_bytes(r, r->window, 0, p->head_bytes)) return 0;
        if (duramen_crc32c(0, r->window, (size_t)p->head_bytes) != (uint32_t)p->head_crc32c) return 0;
    }
    if (p->kind == PIECE_SLOTS && (p->start > 0 || !p->verify) && p->end >= p->record_bytes + 4) {
        const int64_t slot_bytes = p->record_bytes + 4; /* whether its size is what the planner was told */
        if (!read_bytes(r, r->window, 0, slot_bytes)) return 0;
        if (duramen_scan_slots(r->window, 0, slot_bytes, p->record_bytes, 1, 1, NULL).count != 1) return 0;
    }
    return digest_to(r, p->start < r->digest_end ? p->start : r->digest_end);
}

duramen_piece_reader *duramen_piece_open(const char *path, const duramen_piece *piece)
{
    if (!is_sound(piece)) return NULL;
    duramen_piece_reader *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->fd = -1;
    r->piece = *piece;
    r->position = r->at = piece->start;
    r->previous_offset = piece->previous_offset;
    const int meets_mark = piece->mark_position > piece->start && piece->mark_position < piece->end;
    r->bound = meets_mark ? piece->mark_position : piece->end;
    if (piece->sealed_bytes >= 0) r->digest_end = piece->sealed_bytes;
    else if (piece->mark_position >= 0 && piece->mark_crc32c >= 0) r->digest_end = piece->mark_position;
    if (make_room(r) && is_file_as_planned(r, path) && is_head_as_planned(r)) return r;
    duramen_piece_close(r);
    return NULL;
}

void duramen_piece_close(duramen_piece_reader *r)
{
    if (r == NULL) return;
    if (r->fd >= 0) close(r->fd);
    free(r->window);
    free_piece_rows(&r->rows);
    free(r);
}

/* --- steps */

/* Whether each record that is scanned is wanted, so that its value may be copied on the way. */
static int takes_all(const duramen_piece_reader *r)
{
    return !r->is_past && !r->piece.has_times && r->previous_offset + 1 >= r->piece.from_offset;
}

/* Whether the file is what was written, as far as the planner knew. */
static int64_t finish(duramen_piece_reader *r)
{
    const duramen_piece *p = &r->piece;
    if (!digest_to(r, r->digest_end)) return DURAMEN_PIECE_PYTHON;
    if (p->sealed_bytes >= 0 &&
        (r->sums.crc32c != (uint32_t)p->sealed_crc32c || r->sums.crc32 != (uint32_t)p->sealed_crc32))
        return DURAMEN_PIECE_PYTHON;
    if (p->sealed_bytes < 0 && p->mark_position >= 0 && p->mark_crc32c >= 0 &&
        r->sums.crc32c != (uint32_t)p->mark_crc32c)
        return DURAMEN_PIECE_PYTHON;
    r->is_over = 1;
    return 0;
}

static int is_gap_after(const duramen_piece_reader *r)
{
    const duramen_piece *p = &r->piece;
    const int64_t first = r->previous_offset + 1 > p->from_offset ? r->previous_offset + 1 : p->from_offset;
    return p->shows_gaps && p->end == p->visible_bytes && first < p->next_base && first < p->to_offset;
}

/* At a byte that a scan must not pass: 1 where it goes on. */
static int64_t at_bound(duramen_piece_reader *r)
{
    const duramen_piece *p = &r->piece;
    if (r->position == p->mark_position && p->mark_position > p->start && r->previous_offset + 1 != p->mark_offset)
        return DURAMEN_PIECE_PYTHON;
    if (r->bound < p->end) {
        r->bound = p->end;
        return 1;
    }
    return is_gap_after(r) ? DURAMEN_PIECE_PYTHON : finish(r);
}

/* A scan that found nothing: 1 where more of the file is in the window now. */
static int64_t on_nothing(duramen_piece_reader *r, duramen_piece_batch *batch, int64_t stop)
{
    if (stop == STOP_LIMIT) { /* the first value alone has no room */
        const duramen_scan_end one =
            duramen_scan_frames(r->window, r->position - r->at, r->filled, &r->piece.layout, &r->rows.frames, 1, INT64_MAX,
                                r->previous_offset, 0, NULL, NULL);
        if (one.count != 1) return DURAMEN_PIECE_PYTHON;
        batch->values.bytes = r->rows.frames.value_length[0];
        return DURAMEN_PIECE_ROOM;
    }
    const int64_t filled = r->at + r->filled, rest = filled - r->position;
    const int is_cut =
        stop == STOP_END || stop == STOP_SHORT_HEADER || stop == STOP_SHORT_BODY || (stop == STOP_ZEROS && rest < 4096);
    if (filled >= r->bound || !is_cut) return DURAMEN_PIECE_PYTHON;
    return refill(r) ? 1 : DURAMEN_PIECE_PYTHON;
}

/* One step: rows, 0 where none of those that were scanned is wanted, or a result below 0. */
static int64_t step(duramen_piece_reader *r, duramen_piece_batch *batch, const duramen_piece_codecs *codecs)
{
    const int64_t filled = r->at + r->filled, end = filled < r->bound ? filled : r->bound;
    const piece_window window = {r->window, r->filled, r->at, r->position - r->at, end - r->at, r->previous_offset};
    const int takes_values = batch->values.data != NULL && r->piece.kind == PIECE_FRAMES && takes_all(r);
    const piece_scan found = scan_piece_rows(&r->rows, &r->piece, &window, batch, codecs, takes_values);
    if (found.end.count == 0) {
        const int64_t more = on_nothing(r, batch, found.end.stop);
        return more < 0 ? more : 0;
    }
    if (found.rows < 0 || found.end.last_offset >= r->piece.next_base) return DURAMEN_PIECE_PYTHON;
    int64_t kept = r->is_past ? 0 : select_piece_rows(&r->rows, &r->piece, found.rows);
    if (kept > 0) kept = put_piece_rows(&r->rows, &r->piece, window.at, batch, kept, takes_values);
    if (kept < 0) return kept;
    r->position = r->at + found.end.position;
    r->previous_offset = found.end.last_offset;
    r->is_past = found.end.last_offset >= r->piece.to_offset - 1;
    return kept;
}

int64_t duramen_piece_next(duramen_piece_reader *r, duramen_piece_batch *batch, const duramen_piece_codecs *codecs)
{
    if (batch->capacity < 1) return DURAMEN_PIECE_PYTHON;
    for (int steps = 0; !r->is_over; steps++) {
        if (steps == MOST_STEPS) return DURAMEN_PIECE_AGAIN;
        if (r->is_past && r->piece.mark_position < 0) return finish(r);
        if (r->position == r->bound) {
            const int64_t found = at_bound(r);
            if (found <= 0) return found;
        }
        const int64_t rows = step(r, batch, codecs);
        if (rows != 0) return rows;
    }
    return 0;
}

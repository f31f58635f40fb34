#include "amqp.h"

#include "text.h"

enum { MAX_DEPTH = 32, SECTIONS_FROM = 0x70, SECTIONS_TO = 0x78 };
enum { LIST0 = 0x45, BINARY8 = 0xa0, BINARY32 = 0xb0, LIST8 = 0xc0, LIST32 = 0xd0, MAP8 = 0xc1, MAP32 = 0xd1 };

/* Times that a date of the years 1 to 9999 can show, in milliseconds. */
static const int64_t LEAST_TIME = INT64_C(-62135596800000), MOST_TIME = INT64_C(253402300799999);

/* One value: its constructor, where its content lies, and where the next value begins. */
typedef struct {
    int64_t position, length, next;
    uint32_t count;
    uint8_t code;
} amqp_value;

/* A walk: its buffer, where it failed, and the message whose fields it stores. */
typedef struct {
    const uint8_t *buf;
    int64_t failed_at;
    amqp_spans *fields;
    int64_t rows, row;
    int64_t body_at; /* the first section of the body */
    int64_t bad_key_at; /* the first key of a map section that is none, or -1 */
    int section; /* whose items are walked */
} amqp_walk;

static int fail(amqp_walk *walk, int64_t position, int fault)
{
    walk->failed_at = position;
    return fault;
}

static int is_ascii(const uint8_t *p, int64_t length)
{
    for (int64_t at = 0; at < length; at++)
        if (p[at] & 0x80) return 0;
    return 1;
}

/* Where a constructor's content ends: after so many bytes; for one with a size before it, minus the bytes of the size;
 * or nowhere, because the code is none. */
enum { NO_CODE = -128 };
#define NO NO_CODE
#define NO16 NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO
static const int8_t WIDTHS[256] = {
    NO16, NO16, NO16, NO16,
    0, 0, 0, 0, 0, 0, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0x40 */
    1, 1, 1, 1, 1, 1, 1, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0x50 */
    2, 2, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0x60 */
    4, 4, 4, 4, 4, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0x70 */
    8, 8, 8, 8, 8, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0x80 */
    NO, NO, NO, NO, 16, NO, NO, NO, 16, NO, NO, NO, NO, NO, NO, NO, /* 0x90 */
    -1, -1, NO, -1, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0xa0 */
    -4, -4, NO, -4, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0xb0 */
    -1, -1, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0xc0 */
    -4, -4, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0xd0 */
    -1, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0xe0 */
    -4, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, /* 0xf0 */
};
#undef NO
#undef NO16

static int is_compound(uint8_t code) { return code >= 0xc0; }

/* A number of at most 8 bytes, with its sign where its type has one. */
static int64_t number_at(const uint8_t *p, uint8_t code, int64_t width)
{
    const uint64_t raw = load_uint(p, width, 1);
    switch (code) {
    case 0x41: return 1;
    case 0x51: case 0x54: case 0x55: return (int8_t)raw;
    case 0x61: return (int16_t)raw;
    case 0x71: return (int32_t)raw;
    default: return (int64_t)raw;
    }
}

static int is_possible(uint8_t code, int64_t number)
{
    if (code == 0x56) return number <= 1;
    if (code == 0x73) return number <= 0x10ffff && !(number >= 0xd800 && number <= 0xdfff);
    return 1;
}

static int walk_value(amqp_walk *walk, int64_t at, int64_t end, int depth, amqp_value *out);
static int walk_content(amqp_walk *walk, uint8_t code, int64_t at, int64_t end, int depth, amqp_value *out);

static int is_text(uint8_t code) { return code == 0xa1 || code == 0xb1 || code == 0xa3 || code == 0xb3; }
static int is_ulong(uint8_t code) { return code == 0x44 || code == 0x53 || code == 0x80; }

/* Whether the map of a section may have such a key: text, or in annotations a number. */
static int is_key(int section, uint8_t code) { return is_text(code) || (section != 0x74 && is_ulong(code)); }

/* `count` values that fill what lies before `end`. */
static int walk_items(amqp_walk *walk, int64_t at, int64_t end, uint32_t count, int depth)
{
    amqp_value item;
    if (count > end - at) return fail(walk, at, AMQP_BAD_SIZE); /* each has a byte at least */
    for (uint32_t number = 0; number < count; number++) {
        const int fault = walk_value(walk, at, end, depth, &item);
        if (fault != AMQP_SOUND) return fault;
        if (depth == MAX_DEPTH - 1 && number % 2 == 0 && walk->bad_key_at < 0 && !is_key(walk->section, item.code))
            walk->bad_key_at = at;
        at = item.next;
    }
    return at == end ? AMQP_SOUND : fail(walk, at, AMQP_BAD_SIZE);
}

/* The elements of an array share one constructor, which may be described. */
static int walk_array(amqp_walk *walk, int64_t at, int64_t end, uint32_t count, int depth)
{
    amqp_value element;
    while (at < end && walk->buf[at] == 0) {
        const int fault = walk_value(walk, at + 1, end, depth, &element);
        if (fault != AMQP_SOUND) return fault;
        at = element.next;
        if (--depth < 0) return fail(walk, at, AMQP_TOO_DEEP);
    }
    if (at >= end) return fail(walk, at, AMQP_BAD_SIZE);
    const uint8_t code = walk->buf[at++];
    if (WIDTHS[code] == 0) return at == end ? AMQP_SOUND : fail(walk, at, AMQP_BAD_SIZE);
    if (count > end - at) return fail(walk, at, AMQP_BAD_SIZE);
    for (uint32_t number = 0; number < count; number++) {
        const int fault = walk_content(walk, code, at, end, depth, &element);
        if (fault != AMQP_SOUND) return fault;
        at = element.next;
    }
    return at == end ? AMQP_SOUND : fail(walk, at, AMQP_BAD_SIZE);
}

/* A list, map or array after its size: the count, and what it holds. */
static int walk_compound(amqp_walk *walk, uint8_t code, int64_t width, int depth, amqp_value *out)
{
    const int64_t at = out->position, end = at + out->length;
    if (out->length < width) return fail(walk, at, AMQP_BAD_SIZE);
    if (depth <= 0) return fail(walk, at, AMQP_TOO_DEEP);
    out->count = (uint32_t)load_uint(walk->buf + at, width, 1);
    out->position += width;
    out->length -= width;
    if (code == 0xe0 || code == 0xf0) return walk_array(walk, at + width, end, out->count, depth - 1);
    if ((code == MAP8 || code == MAP32) && out->count % 2) return fail(walk, at, AMQP_BAD_SIZE);
    return walk_items(walk, at + width, end, out->count, depth - 1);
}

/* What follows a constructor. */
static int walk_content(amqp_walk *walk, uint8_t code, int64_t at, int64_t end, int depth, amqp_value *out)
{
    const int64_t fixed = WIDTHS[code], width = -fixed;
    out->code = code;
    out->count = 0;
    if (fixed == NO_CODE) return fail(walk, at - 1, AMQP_BAD_CODE);
    if ((fixed < 0 ? width : fixed) > end - at) return fail(walk, at, AMQP_CUT_SHORT);
    if (fixed >= 0) {
        out->position = fixed <= 8 ? number_at(walk->buf + at, code, fixed) : at;
        out->length = fixed;
        out->next = at + fixed;
        return is_possible(code, out->position) ? AMQP_SOUND : fail(walk, at, AMQP_BAD_VALUE);
    }
    const int64_t length = (int64_t)load_uint(walk->buf + at, width, 1);
    if (length > end - at - width) return fail(walk, at, AMQP_CUT_SHORT);
    out->position = at + width;
    out->length = length;
    out->next = at + width + length;
    if (is_compound(code)) return walk_compound(walk, code, width, depth, out);
    const uint8_t *text = walk->buf + out->position;
    if ((code == 0xa1 || code == 0xb1) && !duramen_is_utf8(text, length)) return fail(walk, out->position, AMQP_BAD_TEXT);
    if ((code == 0xa3 || code == 0xb3) && !is_ascii(text, length)) return fail(walk, out->position, AMQP_BAD_TEXT);
    return AMQP_SOUND;
}

/* The value whose constructor is at `at`. */
static int walk_value(amqp_walk *walk, int64_t at, int64_t end, int depth, amqp_value *out)
{
    if (at >= end) return fail(walk, at, AMQP_CUT_SHORT);
    const uint8_t code = walk->buf[at];
    if (code != 0) return walk_content(walk, code, at + 1, end, depth, out);
    if (depth <= 0) return fail(walk, at, AMQP_TOO_DEEP);
    amqp_value part;
    int fault = walk_value(walk, at + 1, end, depth - 1, &part);
    if (fault == AMQP_SOUND) fault = walk_value(walk, part.next, end, depth - 1, &part);
    out->code = AMQP_DESCRIBED;
    out->count = 0;
    out->position = at;
    out->next = part.next;
    out->length = part.next - at;
    return fault;
}

/* In a span, a value with parts keeps its constructor: whoever shows it walks it again. */
static void store_span(amqp_spans *spans, int64_t row, const amqp_value *value, int64_t at)
{
    const int whole = is_compound(value->code);
    spans->codes[row] = value->code;
    spans->positions[row] = whole ? at : value->position;
    spans->lengths[row] = (uint32_t)(whole ? value->next - at : value->length);
    if (spans->counts != NULL) spans->counts[row] = value->count;
}

/* --- sections */

static const char *const NAMES[] = {
    "amqp:header:list", "amqp:delivery-annotations:map", "amqp:message-annotations:map", "amqp:properties:list",
    "amqp:application-properties:map", "amqp:data:binary", "amqp:amqp-sequence:list", "amqp:amqp-value:*",
    "amqp:footer:map",
};

/* The number of a section by its descriptor, a number or a symbol; -1 where it is none. */
static int section_of(const amqp_walk *walk, const amqp_value *descriptor)
{
    if (descriptor->code == 0x53 || descriptor->code == 0x80) {
        const int64_t number = descriptor->position;
        return number >= SECTIONS_FROM && number <= SECTIONS_TO ? (int)number : -1;
    }
    if (descriptor->code != 0xa3 && descriptor->code != 0xb3) return -1;
    for (int section = SECTIONS_FROM; section <= SECTIONS_TO; section++) {
        const char *name = NAMES[section - SECTIONS_FROM];
        const int64_t length = (int64_t)strlen(name);
        if (descriptor->length == length && memcmp(walk->buf + descriptor->position, name, (size_t)length) == 0)
            return section;
    }
    return -1;
}

static int is_binary(uint8_t code) { return code == BINARY8 || code == BINARY32; }
static int is_boolean(uint8_t code) { return code == 0x41 || code == 0x42 || code == 0x56; }
static int is_uint(uint8_t code) { return code == 0x43 || code == 0x52 || code == 0x70; }

/* Whether a field of the header or of the properties may have a value. */
static int suits(int field, const amqp_value *value)
{
    switch (field) {
    case 0: case 3: return is_boolean(value->code);
    case 1: return value->code == 0x50;
    case 2: case 4: case 18: return is_uint(value->code);
    case 7: case 12:
        return is_ulong(value->code) || is_binary(value->code) || is_text(value->code) || value->code == 0x98;
    case 8: return is_binary(value->code);
    case 15: case 16:
        return value->code == 0x83 && value->position >= LEAST_TIME && value->position <= MOST_TIME;
    default: return is_text(value->code);
    }
}

/* The fields of a header or of properties: a list of `most` at most, from `first` on. */
static int walk_fields(amqp_walk *walk, int64_t list_at, const amqp_value *list, int first, uint32_t most)
{
    amqp_value value;
    if (list->code == LIST0) return AMQP_SOUND;
    if ((list->code != LIST8 && list->code != LIST32) || list->count > most)
        return fail(walk, list_at, AMQP_BAD_FIELD);
    int64_t at = list->position;
    for (uint32_t number = 0; number < list->count; number++) {
        const int fault = walk_value(walk, at, list->next, MAX_DEPTH, &value);
        if (fault != AMQP_SOUND) return fault;
        const int field = first + (int)number;
        if (value.code != 0x40) {
            if (!suits(field, &value)) return fail(walk, at, AMQP_BAD_FIELD);
            store_span(walk->fields, field * walk->rows + walk->row, &value, at);
        }
        at = value.next;
    }
    return AMQP_SOUND;
}

/* A map whose items were walked. */
static int store_map(amqp_walk *walk, int64_t map_at, const amqp_value *map, int field)
{
    if (map->code != MAP8 && map->code != MAP32) return fail(walk, map_at, AMQP_BAD_FIELD);
    if (walk->bad_key_at >= 0) return fail(walk, walk->bad_key_at, AMQP_BAD_FIELD);
    amqp_spans *fields = walk->fields;
    const int64_t span = field * walk->rows + walk->row;
    fields->codes[span] = map->code;
    fields->positions[span] = map->position;
    fields->lengths[span] = (uint32_t)map->length;
    fields->counts[span] = map->count;
    return AMQP_SOUND;
}

/* A body in sections. One section of data has the span of its content, so that it can be gathered as it is; several,
 * and sequences, the span of all sections. */
static int add_section(amqp_walk *walk, int64_t start, int64_t body_at, const amqp_value *body, int field)
{
    amqp_spans *fields = walk->fields;
    const int64_t span = field * walk->rows + walk->row;
    const int is_right = field == AMQP_DATA ? is_binary(body->code)
                                            : body->code == LIST0 || body->code == LIST8 || body->code == LIST32;
    if (!is_right) return fail(walk, body_at, AMQP_BAD_FIELD);
    const int is_first = fields->codes[span] == AMQP_ABSENT;
    if (is_first) walk->body_at = start;
    const int is_alone = is_first && field == AMQP_DATA;
    fields->codes[span] = body->code;
    fields->positions[span] = is_alone ? body->position : walk->body_at;
    fields->lengths[span] = (uint32_t)(is_alone ? body->length : body->next - walk->body_at);
    fields->counts[span] = is_first ? 1 : fields->counts[span] + 1;
    return AMQP_SOUND;
}

static int walk_section(amqp_walk *walk, int section, int64_t start, int64_t at, const amqp_value *body)
{
    switch (section) {
    case 0x70: return walk_fields(walk, at, body, AMQP_DURABLE, 5);
    case 0x71: return store_map(walk, at, body, AMQP_DELIVERY_ANNOTATIONS);
    case 0x72: return store_map(walk, at, body, AMQP_ANNOTATIONS);
    case 0x73: return walk_fields(walk, at, body, AMQP_MESSAGE_ID, 13);
    case 0x74: return store_map(walk, at, body, AMQP_APPLICATION_PROPERTIES);
    case 0x75: return add_section(walk, start, at, body, AMQP_DATA);
    case 0x76: return add_section(walk, start, at, body, AMQP_SEQUENCE);
    case 0x77: store_span(walk->fields, AMQP_VALUE * walk->rows + walk->row, body, at); return AMQP_SOUND;
    default: return store_map(walk, at, body, AMQP_FOOTER);
    }
}

/* Whether a section may follow another one: each once, in their order; several of data or of sequences; one kind of
 * body. */
static int may_follow(int section, int previous)
{
    if (section == previous) return section == 0x75 || section == 0x76;
    return section > previous && !(section <= 0x77 && previous >= 0x75);
}

/* The section that begins at `at`, and where its content does; 0, and a fault, where none begins. */
static int find_section(amqp_walk *walk, int64_t at, int64_t end, int64_t *body_at, int *fault)
{
    amqp_value descriptor;
    int section = 0;
    *fault = AMQP_BAD_SECTION;
    if (walk->buf[at] == 0 && end - at > 2 && walk->buf[at + 1] == 0x53) {
        section = walk->buf[at + 2];
        *body_at = at + 3;
    } else if (walk->buf[at] == 0) {
        *fault = walk_value(walk, at + 1, end, MAX_DEPTH, &descriptor);
        if (*fault != AMQP_SOUND) return 0;
        *fault = AMQP_BAD_SECTION;
        section = section_of(walk, &descriptor);
        *body_at = descriptor.next;
    }
    if (section >= SECTIONS_FROM && section <= SECTIONS_TO) return section;
    fail(walk, at, AMQP_BAD_SECTION);
    return 0;
}

static int walk_message(amqp_walk *walk, int64_t at, int64_t end)
{
    amqp_value body;
    int previous = 0;
    while (at < end) {
        int64_t body_at = at;
        int fault;
        const int section = find_section(walk, at, end, &body_at, &fault);
        if (section == 0) return fault;
        if (!may_follow(section, previous)) return fail(walk, at, AMQP_BAD_ORDER);
        walk->section = section;
        walk->bad_key_at = -1;
        fault = walk_value(walk, body_at, end, MAX_DEPTH, &body);
        if (fault == AMQP_SOUND) fault = walk_section(walk, section, at, body_at, &body);
        if (fault != AMQP_SOUND) return fault;
        previous = section;
        at = body.next;
    }
    return AMQP_SOUND;
}

/* What a message has that turned out to be malformed. */
static void clear_row(int64_t rows, int64_t row, amqp_spans *fields)
{
    for (int64_t span = row; span < AMQP_FIELDS * rows; span += rows) {
        fields->codes[span] = AMQP_ABSENT;
        fields->positions[span] = 0;
        fields->lengths[span] = fields->counts[span] = 0;
    }
}

int64_t duramen_scan_amqp(const uint8_t *buf, int64_t buf_bytes, const int64_t *positions, const uint32_t *lengths,
                          int64_t rows, amqp_spans *fields, uint32_t *faults, int64_t *fault_positions)
{
    amqp_walk walk = {.buf = buf, .fields = fields, .rows = rows};
    memset(fields->codes, AMQP_ABSENT, (size_t)(AMQP_FIELDS * rows));
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = positions[row], length = lengths[row];
        if (at < 0 || at > buf_bytes || length > buf_bytes - at) return -1 - row;
        walk.row = row;
        const int fault = walk_message(&walk, at, at + length);
        faults[row] = (uint32_t)fault;
        fault_positions[row] = fault == AMQP_SOUND ? 0 : walk.failed_at - at;
        if (fault != AMQP_SOUND) clear_row(rows, row, fields);
    }
    return 0;
}

int64_t duramen_scan_amqp_pairs(const uint8_t *buf, int64_t buf_bytes, const amqp_spans *contents, int64_t rows,
                                amqp_spans *keys, amqp_spans *values, int64_t total)
{
    amqp_walk walk = {.buf = buf};
    amqp_value item;
    int64_t filled = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = contents->positions[row];
        const int64_t length = contents->lengths[row], pairs = contents->counts[row] / 2;
        if (contents->counts[row] == 0) continue;
        if (at < 0 || at > buf_bytes || length > buf_bytes - at || pairs > total - filled) return -1 - row;
        const int64_t end = at + length;
        for (int64_t number = 0; number < 2 * pairs; number++) {
            if (walk_value(&walk, at, end, MAX_DEPTH, &item) != AMQP_SOUND) return -1 - row;
            store_span(number % 2 ? values : keys, filled + number / 2, &item, at);
            at = item.next;
        }
        filled += pairs;
        if (at != end) return -1 - row;
    }
    return filled == total ? 0 : -1 - rows;
}

/* --- values as text */

enum { SHOWS_NOTHING, SHOWS_TEXT, SHOWS_NUMBER, SHOWS_ULONG, SHOWS_BOOLEAN, SHOWS_UUID, SHOWS_GIVEN };
enum { NUMBER_BYTES = 20, BOOLEAN_BYTES = 5, UUID_BYTES = 36 };

static int shows(uint8_t code)
{
    switch (code) {
    case AMQP_ABSENT: case 0x40: return SHOWS_NOTHING;
    case 0xa1: case 0xb1: case 0xa3: case 0xb3: return SHOWS_TEXT;
    case 0x43: case 0x44: case 0x50: case 0x51: case 0x52: case 0x53: case 0x54: case 0x55: case 0x60: case 0x61:
    case 0x70: case 0x71: case 0x81: return SHOWS_NUMBER;
    case 0x80: return SHOWS_ULONG;
    case 0x41: case 0x42: case 0x56: return SHOWS_BOOLEAN;
    case 0x98: return SHOWS_UUID;
    default: return SHOWS_GIVEN;
    }
}

int64_t duramen_measure_amqp_texts(const amqp_spans *spans, int64_t count, int64_t *given, int64_t *without)
{
    int64_t total = 0;
    *given = *without = 0;
    for (int64_t row = 0; row < count; row++) {
        switch (shows(spans->codes[row])) {
        case SHOWS_TEXT: total += spans->lengths[row]; break;
        case SHOWS_NUMBER: case SHOWS_ULONG: total += NUMBER_BYTES; break;
        case SHOWS_BOOLEAN: total += BOOLEAN_BYTES; break;
        case SHOWS_UUID: total += UUID_BYTES; break;
        case SHOWS_GIVEN: (*given)++; break;
        default: (*without)++; break;
        }
    }
    return total;
}

/* Text of one value that lies somewhere: in the buffer, among the given ones, or in `made`. */
typedef struct {
    const uint8_t *from;
    int64_t length;
    uint8_t made[UUID_BYTES];
} amqp_text;

static void show_number(amqp_text *text, uint64_t number, int is_negative)
{
    uint8_t *at = text->made + NUMBER_BYTES;
    do {
        *--at = (uint8_t)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    if (is_negative) *--at = '-';
    text->from = at;
    text->length = text->made + NUMBER_BYTES - at;
}

static void show_uuid(amqp_text *text, const uint8_t *raw)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t *at = text->made;
    for (int number = 0; number < 16; number++) {
        if (number == 4 || number == 6 || number == 8 || number == 10) *at++ = '-';
        *at++ = (uint8_t)digits[raw[number] >> 4];
        *at++ = (uint8_t)digits[raw[number] & 15];
    }
    text->from = text->made;
    text->length = UUID_BYTES;
}

/* The text of a value that the buffer or its span holds; 0 where it lies outside of the buffer. */
static int show(const uint8_t *buf, int64_t buf_bytes, const amqp_spans *spans, int64_t row, amqp_text *text)
{
    const int kind = shows(spans->codes[row]);
    const int64_t at = spans->positions[row], length = spans->lengths[row];
    if (kind == SHOWS_TEXT || kind == SHOWS_UUID) {
        if (at < 0 || at > buf_bytes || length > buf_bytes - at || (kind == SHOWS_UUID && length != 16)) return 0;
        text->from = buf + at;
        text->length = length;
        if (kind == SHOWS_UUID) show_uuid(text, buf + at);
    } else if (kind == SHOWS_BOOLEAN) {
        text->from = (const uint8_t *)(at ? "true" : "false");
        text->length = at ? 4 : 5;
    } else if (kind == SHOWS_NUMBER || kind == SHOWS_ULONG) {
        const int is_negative = kind == SHOWS_NUMBER && at < 0;
        show_number(text, is_negative ? UINT64_C(0) - (uint64_t)at : (uint64_t)at, is_negative);
    } else {
        text->length = 0;
    }
    return 1;
}

int64_t duramen_fill_amqp_texts(const uint8_t *buf, int64_t buf_bytes, const amqp_spans *spans, int64_t count,
                                const amqp_given *given, int32_t *offsets, uint8_t *data, int64_t data_bytes)
{
    const int64_t most = data_bytes < INT32_MAX ? data_bytes : INT32_MAX;
    int64_t at = 0, next = 0;
    amqp_text text;
    offsets[0] = 0;
    for (int64_t row = 0; row < count; row++) {
        if (shows(spans->codes[row]) == SHOWS_GIVEN) {
            if (next == given->count) return -1 - row;
            const int64_t start = given->offsets[next], end = given->offsets[next + 1];
            if (start < 0 || end < start || end > given->bytes) return -1 - row;
            text.from = given->data + start;
            text.length = end - start;
            next++;
        } else if (!show(buf, buf_bytes, spans, row, &text)) {
            return -1 - row;
        }
        if (text.length > most - at) return -1 - row;
        if (text.length > 0) memcpy(data + at, text.from, (size_t)text.length);
        at += text.length;
        offsets[row + 1] = (int32_t)at;
    }
    return at;
}

int64_t duramen_fill_amqp_names(const uint8_t *codes, int64_t count, const amqp_given *names, int32_t *offsets,
                                uint8_t *data, int64_t data_bytes)
{
    const int64_t most = data_bytes < INT32_MAX ? data_bytes : INT32_MAX;
    int64_t at = 0;
    offsets[0] = 0;
    for (int64_t row = 0; row < count; row++) {
        if (codes[row] >= names->count) return -1 - row;
        const int64_t start = names->offsets[codes[row]], length = names->offsets[codes[row] + 1] - start;
        if (start < 0 || length < 0 || length > names->bytes - start || length > most - at) return -1 - row;
        if (length > 0) memcpy(data + at, names->data + start, (size_t)length);
        at += length;
        offsets[row + 1] = (int32_t)at;
    }
    return at;
}

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

/* Bytes of a fixed content; -1 where the code has none of that kind. */
static int64_t fixed_width(uint8_t code)
{
    switch (code) {
    case 0x40: case 0x41: case 0x42: case 0x43: case 0x44: case LIST0: return 0;
    case 0x50: case 0x51: case 0x52: case 0x53: case 0x54: case 0x55: case 0x56: return 1;
    case 0x60: case 0x61: return 2;
    case 0x70: case 0x71: case 0x72: case 0x73: case 0x74: return 4;
    case 0x80: case 0x81: case 0x82: case 0x83: case 0x84: return 8;
    case 0x94: case 0x98: return 16;
    default: return -1;
    }
}

/* Bytes of the size that stands before the content; 0 where the code has none. */
static int64_t size_width(uint8_t code)
{
    switch (code) {
    case 0xa0: case 0xa1: case 0xa3: case LIST8: case MAP8: case 0xe0: return 1;
    case 0xb0: case 0xb1: case 0xb3: case LIST32: case MAP32: case 0xf0: return 4;
    default: return 0;
    }
}

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

/* `count` values that fill what lies before `end`. */
static int walk_items(amqp_walk *walk, int64_t at, int64_t end, uint32_t count, int depth)
{
    amqp_value item;
    if (count > end - at) return fail(walk, at, AMQP_BAD_SIZE); /* each has a byte at least */
    for (uint32_t number = 0; number < count; number++) {
        const int fault = walk_value(walk, at, end, depth, &item);
        if (fault != AMQP_SOUND) return fault;
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
    if (fixed_width(code) == 0) return at == end ? AMQP_SOUND : fail(walk, at, AMQP_BAD_SIZE);
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
    const int64_t fixed = fixed_width(code), width = size_width(code);
    out->code = code;
    out->count = 0;
    if (fixed < 0 && width == 0) return fail(walk, at - 1, AMQP_BAD_CODE);
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

static int is_text(uint8_t code) { return code == 0xa1 || code == 0xb1 || code == 0xa3 || code == 0xb3; }
static int is_binary(uint8_t code) { return code == BINARY8 || code == BINARY32; }
static int is_boolean(uint8_t code) { return code == 0x41 || code == 0x42 || code == 0x56; }
static int is_uint(uint8_t code) { return code == 0x43 || code == 0x52 || code == 0x70; }
static int is_ulong(uint8_t code) { return code == 0x44 || code == 0x53 || code == 0x80; }

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

/* A map whose keys are text, or in annotations numbers. */
static int walk_map(amqp_walk *walk, int64_t map_at, const amqp_value *map, int field)
{
    amqp_value item;
    if (map->code != MAP8 && map->code != MAP32) return fail(walk, map_at, AMQP_BAD_FIELD);
    int64_t at = map->position;
    for (uint32_t number = 0; number < map->count; number++) {
        const int fault = walk_value(walk, at, map->next, MAX_DEPTH, &item);
        if (fault != AMQP_SOUND) return fault;
        const int is_key = number % 2 == 0;
        if (is_key && !is_text(item.code) && !(field != AMQP_APPLICATION_PROPERTIES && is_ulong(item.code)))
            return fail(walk, at, AMQP_BAD_FIELD);
        at = item.next;
    }
    amqp_spans *fields = walk->fields;
    const int64_t span = field * walk->rows + walk->row;
    fields->codes[span] = map->code;
    fields->positions[span] = map->position;
    fields->lengths[span] = (uint32_t)map->length;
    fields->counts[span] = map->count;
    return AMQP_SOUND;
}

/* A body in sections: the first one is stored as if it were alone; of several, where all of them lie. */
static int add_section(amqp_walk *walk, int64_t start, int64_t body_at, const amqp_value *body, int field)
{
    amqp_spans *fields = walk->fields;
    const int64_t span = field * walk->rows + walk->row;
    const int is_right = field == AMQP_DATA ? is_binary(body->code)
                                            : body->code == LIST0 || body->code == LIST8 || body->code == LIST32;
    if (!is_right) return fail(walk, body_at, AMQP_BAD_FIELD);
    if (fields->codes[span] == AMQP_ABSENT) {
        fields->counts[span] = 0;
        fields->positions[span] = start;
    }
    fields->codes[span] = body->code;
    fields->lengths[span] = (uint32_t)(body->next - fields->positions[span]);
    fields->counts[span]++;
    return AMQP_SOUND;
}

static int walk_section(amqp_walk *walk, int section, int64_t start, int64_t at, const amqp_value *body)
{
    switch (section) {
    case 0x70: return walk_fields(walk, at, body, AMQP_DURABLE, 5);
    case 0x71: return walk_map(walk, at, body, AMQP_DELIVERY_ANNOTATIONS);
    case 0x72: return walk_map(walk, at, body, AMQP_ANNOTATIONS);
    case 0x73: return walk_fields(walk, at, body, AMQP_MESSAGE_ID, 13);
    case 0x74: return walk_map(walk, at, body, AMQP_APPLICATION_PROPERTIES);
    case 0x75: return add_section(walk, start, at, body, AMQP_DATA);
    case 0x76: return add_section(walk, start, at, body, AMQP_SEQUENCE);
    case 0x77: store_span(walk->fields, AMQP_VALUE * walk->rows + walk->row, body, at); return AMQP_SOUND;
    default: return walk_map(walk, at, body, AMQP_FOOTER);
    }
}

/* Whether a section may follow another one: each once, in their order; several of data or of sequences; one kind of
 * body. */
static int may_follow(int section, int previous)
{
    if (section == previous) return section == 0x75 || section == 0x76;
    return section > previous && !(section <= 0x77 && previous >= 0x75);
}

static int walk_message(amqp_walk *walk, int64_t at, int64_t end)
{
    amqp_value descriptor, body;
    int previous = 0;
    while (at < end) {
        if (walk->buf[at] != 0) return fail(walk, at, AMQP_BAD_SECTION);
        int fault = walk_value(walk, at + 1, end, MAX_DEPTH, &descriptor);
        if (fault != AMQP_SOUND) return fault;
        const int section = section_of(walk, &descriptor);
        if (section < 0) return fail(walk, at, AMQP_BAD_SECTION);
        if (!may_follow(section, previous)) return fail(walk, at, AMQP_BAD_ORDER);
        fault = walk_value(walk, descriptor.next, end, MAX_DEPTH, &body);
        if (fault == AMQP_SOUND) fault = walk_section(walk, section, at, descriptor.next, &body);
        if (fault != AMQP_SOUND) return fault;
        previous = section;
        at = body.next;
    }
    return AMQP_SOUND;
}

/* A body of one section of data: its content alone, so that it can be gathered as it is. */
static void narrow_data(amqp_walk *walk)
{
    amqp_spans *fields = walk->fields;
    const int64_t span = AMQP_DATA * walk->rows + walk->row;
    if (fields->codes[span] == AMQP_ABSENT || fields->counts[span] != 1) return;
    amqp_value value;
    const int64_t start = fields->positions[span], end = start + fields->lengths[span];
    if (walk_value(walk, start + 1, end, MAX_DEPTH, &value) != AMQP_SOUND) return;
    if (walk_value(walk, value.next, end, MAX_DEPTH, &value) != AMQP_SOUND) return;
    fields->positions[span] = value.position;
    fields->lengths[span] = (uint32_t)value.length;
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

int64_t duramen_scan_amqp(const uint8_t *buf, int64_t buf_bytes, const int32_t *offsets, int64_t rows,
                          amqp_spans *fields, uint32_t *faults, int64_t *fault_positions)
{
    amqp_walk walk = {buf, 0, fields, rows, 0};
    memset(fields->codes, AMQP_ABSENT, (size_t)(AMQP_FIELDS * rows));
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = offsets[row], end = offsets[row + 1];
        if (at < 0 || end < at || end > buf_bytes) return -1 - row;
        walk.row = row;
        const int fault = walk_message(&walk, at, end);
        faults[row] = (uint32_t)fault;
        fault_positions[row] = fault == AMQP_SOUND ? 0 : walk.failed_at - at;
        if (fault == AMQP_SOUND)
            narrow_data(&walk);
        else
            clear_row(rows, row, fields);
    }
    return 0;
}

int64_t duramen_scan_amqp_items(const uint8_t *buf, int64_t buf_bytes, const amqp_spans *contents, int64_t rows,
                                amqp_spans *items, int64_t total)
{
    amqp_walk walk = {buf, 0, NULL, 0, 0};
    amqp_value item;
    int64_t filled = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = contents->positions[row];
        const int64_t length = contents->lengths[row], count = contents->counts[row];
        if (count == 0) continue;
        if (at < 0 || at > buf_bytes || length > buf_bytes - at || count > total - filled) return -1 - row;
        const int64_t end = at + length;
        for (int64_t number = 0; number < count; number++) {
            if (walk_value(&walk, at, end, MAX_DEPTH, &item) != AMQP_SOUND) return -1 - row;
            store_span(items, filled++, &item, at);
            at = item.next;
        }
        if (at != end) return -1 - row;
    }
    return filled == total ? 0 : -1 - rows;
}

/* Messages of AMQP 1.0 in columns: which sections, fields and items each value has, and where their bytes lie. Every
 * size and count is checked against what remains before it is used, every value of the type system is walked to its
 * end, and nothing is copied. */
#ifndef DURAMEN_AMQP_H
#define DURAMEN_AMQP_H

#include "bytes.h"

/* The numbers of layout.AmqpFault. */
enum {
    AMQP_SOUND = 0,
    AMQP_CUT_SHORT = 2,
    AMQP_BAD_CODE = 3,
    AMQP_BAD_SIZE = 4,
    AMQP_TOO_DEEP = 5,
    AMQP_BAD_TEXT = 6,
    AMQP_BAD_VALUE = 7,
    AMQP_BAD_SECTION = 8,
    AMQP_BAD_ORDER = 9,
    AMQP_BAD_FIELD = 10,
};

/* The numbers of layout.AmqpField. */
enum {
    AMQP_DURABLE = 0,
    AMQP_DELIVERY_ANNOTATIONS = 5,
    AMQP_ANNOTATIONS = 6,
    AMQP_MESSAGE_ID = 7,
    AMQP_APPLICATION_PROPERTIES = 20,
    AMQP_DATA = 21,
    AMQP_SEQUENCE = 22,
    AMQP_VALUE = 23,
    AMQP_FOOTER = 24,
    AMQP_FIELDS = 25,
};

/* In `codes`, besides the codes of the type system: the value is absent, or described. */
enum { AMQP_ABSENT = 0, AMQP_DESCRIBED = 1 };

typedef struct {
    uint8_t *codes;    /* the constructor */
    int64_t *positions; /* where the content begins; of numbers up to 8 bytes the number; of a value with items, a
                         * described one and an array the constructor's place */
    uint32_t *lengths;
    uint32_t *counts; /* of maps: keys and values; of data: sections; of sequences: sections */
} amqp_spans;

/* Texts, as an Arrow array has them: `count + 1` offsets. */
typedef struct {
    const uint8_t *data;
    const int32_t *offsets;
    int64_t bytes, count;
} amqp_given;

/* Fills in AMQP_FIELDS times `rows` spans, one field after another, and for each row its fault and the byte of the value
 * that shows it. Returns 0, or -1 - the first row that lies outside of the buffer. */
int64_t duramen_scan_amqp(const uint8_t *buf, int64_t buf_bytes, const int64_t *positions, const uint32_t *lengths,
                          int64_t rows, amqp_spans *fields, uint32_t *faults, int64_t *fault_positions);

/* The keys and values of maps, whose contents lie at `positions`: `total` of each, row after row. Returns 0, or
 * -1 - the first row that does not hold its pairs, or whose pairs exceed `total`. */
int64_t duramen_scan_amqp_pairs(const uint8_t *buf, int64_t buf_bytes, const amqp_spans *contents, int64_t rows,
                                amqp_spans *keys, amqp_spans *values, int64_t total);

/* How many bytes the texts of values take at most, how many of them are `given`, because the kernel makes none (it makes
 * those of text, integers, booleans and UUIDs), and how many values are absent or null. */
int64_t duramen_measure_amqp_texts(const amqp_spans *spans, int64_t count, int64_t *given, int64_t *without);

/* The values as text, one after another, and Arrow's offsets. Returns the bytes, or -1 - the first row that lies outside
 * of the buffer, or has no room or no given text. */
int64_t duramen_fill_amqp_texts(const uint8_t *buf, int64_t buf_bytes, const amqp_spans *spans, int64_t count,
                                const amqp_given *given, int32_t *offsets, uint8_t *data, int64_t data_bytes);

/* For each code its name. Returns the bytes, or -1 - the first row without a name or without room. */
int64_t duramen_fill_amqp_names(const uint8_t *codes, int64_t count, const amqp_given *names, int32_t *offsets,
                                uint8_t *data, int64_t data_bytes);

#endif

/* duramen.spark.NativePiece: arguments to and fro. */
#include <jni.h>
#include <stdlib.h>

#include "piece_reader.h"

/* The order of NativePiece.Batch. */
enum {
    CAPACITY, VALUES_BYTES, KEYS_BYTES, OFFSET, POSITION, TIMESTAMP, TIMESTAMP_VALID, TIME_KIND, VALUE_OFFSETS, VALUES,
    VALUE_VALID, KEY_OFFSETS, KEYS, KEY_VALID, WANTS_BLOCKS, FIRST_OFFSET, LAST_OFFSET, NEEDED_BYTES, NUMBERS
};

JNIEXPORT jlong JNICALL Java_duramen_spark_NativePiece_open(JNIEnv *env, jclass type, jbyteArray path, jbyteArray packed)
{
    (void)type;
    duramen_piece piece;
    if ((*env)->GetArrayLength(env, packed) != (jsize)sizeof piece) return 0;
    (*env)->GetByteArrayRegion(env, packed, 0, (jsize)sizeof piece, (jbyte *)&piece);
    const jsize length = (*env)->GetArrayLength(env, path);
    char *name = calloc((size_t)length + 1, 1);
    if (name == NULL) return 0;
    (*env)->GetByteArrayRegion(env, path, 0, length, (jbyte *)name);
    duramen_piece_reader *reader = duramen_piece_open(name, &piece);
    free(name);
    return (jlong)(intptr_t)reader;
}

#define ADDRESS(kind, number) ((kind *)(intptr_t)given[number])

JNIEXPORT jlong JNICALL Java_duramen_spark_NativePiece_next(JNIEnv *env, jclass type, jlong reader, jlongArray numbers)
{
    (void)type;
    jlong given[NUMBERS];
    if ((*env)->GetArrayLength(env, numbers) != NUMBERS) return DURAMEN_PIECE_PYTHON;
    (*env)->GetLongArrayRegion(env, numbers, 0, NUMBERS, given);
    duramen_piece_batch batch = {
        .capacity = given[CAPACITY],
        .values_bytes = given[VALUES_BYTES],
        .keys_bytes = given[KEYS_BYTES],
        .offset = ADDRESS(int64_t, OFFSET),
        .position = ADDRESS(int64_t, POSITION),
        .timestamp = ADDRESS(int64_t, TIMESTAMP),
        .timestamp_valid = ADDRESS(uint8_t, TIMESTAMP_VALID),
        .time_kind = ADDRESS(int32_t, TIME_KIND),
        .value_offsets = ADDRESS(int32_t, VALUE_OFFSETS),
        .values = ADDRESS(uint8_t, VALUES),
        .value_valid = ADDRESS(uint8_t, VALUE_VALID),
        .key_offsets = ADDRESS(int32_t, KEY_OFFSETS),
        .keys = ADDRESS(uint8_t, KEYS),
        .key_valid = ADDRESS(uint8_t, KEY_VALID),
        .wants_blocks = given[WANTS_BLOCKS],
    };
    const jlong rows = duramen_piece_next((duramen_piece_reader *)(intptr_t)reader, &batch);
    const jlong found[] = {batch.first_offset, batch.last_offset, batch.needed_bytes};
    (*env)->SetLongArrayRegion(env, numbers, FIRST_OFFSET, 3, found);
    return rows;
}

JNIEXPORT void JNICALL Java_duramen_spark_NativePiece_close(JNIEnv *env, jclass type, jlong reader)
{
    (void)env;
    (void)type;
    duramen_piece_close((duramen_piece_reader *)(intptr_t)reader);
}

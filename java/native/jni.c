/* duramen.spark.NativePiece: arguments to and fro. */
#include <jni.h>
#include <stdlib.h>

#include "piece_reader.h"

enum { NUMBERS = sizeof(duramen_piece_batch) / sizeof(jlong) };
_Static_assert(sizeof(void *) == sizeof(jlong), "an address is a number of the batch");

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

typedef struct {
    JNIEnv *env;
    jclass codecs;
    jmethodID unfold;
} jvm_codecs;

static int64_t unfold(void *context, uint32_t codec, const uint8_t *body, int64_t size, uint8_t *out, int64_t room)
{
    const jvm_codecs *jvm = context;
    JNIEnv *env = jvm->env;
    jobject from = (*env)->NewDirectByteBuffer(env, (void *)(intptr_t)body, size);
    jobject to = from == NULL ? NULL : (*env)->NewDirectByteBuffer(env, out, room);
    int64_t written = -1;
    if (to != NULL) written = (*env)->CallStaticIntMethod(env, jvm->codecs, jvm->unfold, (jint)codec, from, to);
    if ((*env)->ExceptionCheck(env)) {
        (*env)->ExceptionClear(env);
        written = -1;
    }
    (*env)->DeleteLocalRef(env, from);
    (*env)->DeleteLocalRef(env, to);
    return written;
}

JNIEXPORT jlong JNICALL Java_duramen_spark_NativePiece_next(JNIEnv *env, jclass type, jlong reader, jlongArray numbers)
{
    (void)type;
    duramen_piece_batch batch;
    if ((*env)->GetArrayLength(env, numbers) != NUMBERS) return DURAMEN_PIECE_PYTHON;
    (*env)->GetLongArrayRegion(env, numbers, 0, NUMBERS, (jlong *)&batch);
    jvm_codecs jvm = {env, (*env)->FindClass(env, "duramen/spark/Codecs"), NULL};
    if (jvm.codecs != NULL)
        jvm.unfold = (*env)->GetStaticMethodID(env, jvm.codecs, "unfold", "(ILjava/nio/ByteBuffer;Ljava/nio/ByteBuffer;)I");
    if (jvm.unfold == NULL) (*env)->ExceptionClear(env);
    const duramen_piece_codecs codecs = {jvm.unfold == NULL ? NULL : unfold, &jvm};
    const jlong rows = duramen_piece_next((duramen_piece_reader *)(intptr_t)reader, &batch, &codecs);
    (*env)->SetLongArrayRegion(env, numbers, 0, NUMBERS, (const jlong *)&batch);
    return rows;
}

JNIEXPORT void JNICALL Java_duramen_spark_NativePiece_close(JNIEnv *env, jclass type, jlong reader)
{
    (void)env;
    (void)type;
    duramen_piece_close((duramen_piece_reader *)(intptr_t)reader);
}

package duramen.spark;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

import org.slf4j.LoggerFactory;

/**
 * One piece of a segment file, read by the kernel ({@code java/native}). The library comes out of the jar; where it
 * cannot be loaded, Python reads. Used by one thread.
 */
final class NativePiece implements AutoCloseable {
    static final int PYTHON = -1, VALUE_ROOM = -2, AGAIN = -4;

    /** The numbers of a batch, in the order of jni.c: room and addresses, 0 for what is not wanted, then results. */
    enum Batch {
        CAPACITY, VALUES_BYTES, KEYS_BYTES, OFFSET, POSITION, TIMESTAMP, TIMESTAMP_VALID, TIME_KIND, VALUE_OFFSETS, VALUES,
        VALUE_VALID, KEY_OFFSETS, KEYS, KEY_VALID, WANTS_BLOCKS, FIRST_OFFSET, LAST_OFFSET, NEEDED_BYTES;

        static final int COUNT = values().length;
    }

    private static final String LIBRARY = "/duramen/spark/native/libduramen_spark.so";
    private static final boolean IS_LOADED = load();

    private long reader;

    private NativePiece(long reader) {
        this.reader = reader;
    }

    /** The piece, or null where Python must read it. */
    static NativePiece of(String path, byte[] packed) {
        if (!IS_LOADED) return null;
        long reader = open(path.getBytes(StandardCharsets.UTF_8), packed);
        return reader == 0 ? null : new NativePiece(reader);
    }

    /** Rows, 0 at the end, or one of the results below 0. */
    int next(long[] batch) {
        return (int) next(reader, batch);
    }

    @Override
    public void close() {
        if (reader != 0) close(reader);
        reader = 0;
    }

    /** A file that is loaded is no longer needed by its name. */
    private static boolean load() {
        try (InputStream content = NativePiece.class.getResourceAsStream(LIBRARY)) {
            if (content == null) return false;
            Path file = Files.createTempFile("duramen", ".so");
            try {
                Files.copy(content, file, StandardCopyOption.REPLACE_EXISTING);
                System.load(file.toString());
            } finally {
                Files.deleteIfExists(file);
            }
            return true;
        } catch (IOException | UnsatisfiedLinkError | SecurityException unusable) {
            LoggerFactory.getLogger(NativePiece.class).warn("Python reads all splits here: {}", unusable.toString());
            return false;
        }
    }

    private static native long open(byte[] path, byte[] packed);

    private static native long next(long reader, long[] batch);

    private static native void close(long reader);
}

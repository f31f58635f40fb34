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
    static final int PYTHON = -1, ROOM = -2, AGAIN = -3;

    /** Where the numbers of a batch lie, as in piece_reader.h. Room and addresses are 0 for what is not wanted. */
    static final int CAPACITY = 0, OFFSET = 1, POSITION = 2, TIMESTAMP = 3, TIME_KIND = 5, VALUES = 6, KEYS = 10, HEADERS = 14,
        LIST_OFFSETS = 15, HEADER_KEYS = 17, HEADER_VALUES = 21, FIRST_OFFSET = 25, LAST_OFFSET = 26, NUMBERS = 27;

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

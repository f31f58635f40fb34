package duramen.spark;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;

import com.github.luben.zstd.Zstd;
import net.jpountz.lz4.LZ4FrameInputStream;
import org.xerial.snappy.Snappy;

/** Unfolds compressed batches with the codecs that Spark brings. What they refuse, and all else, is Python's. */
final class Codecs {
    private static final int SNAPPY = 2, LZ4 = 3, ZSTD = 4;
    private static final long JAVA_SNAPPY = 0x82534e4150505900L;
    private static final int JAVA_SNAPPY_HEADER_BYTES = 16;
    private static final int CHUNK_BYTES = 1 << 16;

    private Codecs() {}

    /** Called by the kernel, with the number of a codec in Kafka's attributes. Bytes of {@code out}, or -1. */
    static int unfold(int codec, ByteBuffer body, ByteBuffer out) {
        try {
            return switch (codec) {
                case SNAPPY -> snappy(body, out);
                case LZ4 -> lz4(body, out);
                case ZSTD -> zstd(body, out);
                default -> -1;
            };
        } catch (IOException | RuntimeException | LinkageError refused) {
            return -1;
        }
    }

    /** One raw block, or the blocks of the Java library, each after its length. */
    private static int snappy(ByteBuffer body, ByteBuffer out) throws IOException {
        if (body.remaining() < Long.BYTES || body.getLong(0) != JAVA_SNAPPY) return block(body, out);
        int written = 0;
        for (int at = JAVA_SNAPPY_HEADER_BYTES; at < body.limit();) {
            int size = body.getInt(at);
            written += block(body.slice(at + Integer.BYTES, size), out.slice(written, out.capacity() - written));
            at += Integer.BYTES + size;
        }
        return written;
    }

    /** The library writes as many bytes as the block states, wherever {@code out} ends. */
    private static int block(ByteBuffer body, ByteBuffer out) throws IOException {
        if (Snappy.uncompressedLength(body) > out.remaining()) throw new IOException("more than its bound");
        return Snappy.uncompress(body, out);
    }

    private static int lz4(ByteBuffer body, ByteBuffer out) throws IOException {
        byte[] copied = new byte[body.remaining()];
        body.get(copied);
        ByteArrayInputStream frame = new ByteArrayInputStream(copied);
        try (InputStream in = new LZ4FrameInputStream(frame, true)) {
            byte[] chunk = new byte[Math.min(CHUNK_BYTES, Math.max(1, out.remaining()))];
            for (int count = in.read(chunk); count >= 0; count = in.read(chunk)) out.put(chunk, 0, count);
        }
        return frame.available() == 0 ? out.position() : -1;
    }

    private static int zstd(ByteBuffer body, ByteBuffer out) {
        long written = Zstd.decompressDirectByteBuffer(out, 0, out.capacity(), body, 0, body.capacity());
        return Zstd.isError(written) ? -1 : (int) written;
    }
}

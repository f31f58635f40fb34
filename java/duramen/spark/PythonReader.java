package duramen.spark;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.ReadableByteChannel;
import java.util.List;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** One split, read by a Python process of this machine and handed over as Arrow batches, without a row in between. */
final class PythonReader implements PartitionReader<ColumnarBatch> {
    private static final String NO_COLUMNS = "duramen.rows";

    private final String python;
    private final String wanted;
    private final String split;
    private final int done;
    private final long after;
    private PythonProcess process;
    private BufferAllocator allocator;
    private ArrowStreamReader stream;
    private boolean isOver;
    private ColumnarBatch batch;
    private long batches;
    private final TaskContext task = TaskContext.get();

    PythonReader(String python, String wanted, String split) {
        this(python, wanted, split, 0, -1);
    }

    /** The rest of a split: without so many pieces, and without the records of the next one up to an offset. */
    PythonReader(String python, String wanted, String split, int done, long after) {
        this.done = done;
        this.after = after;
        this.python = python;
        this.wanted = wanted;
        this.split = split;
    }

    @Override
    public boolean next() throws IOException {
        if (isOver) return false;
        try {
            if (stream == null) open();
            if (stream.loadNextBatch()) {
                show(stream.getVectorSchemaRoot());
                batches++;
                return true;
            }
            finish();
            return false;
        } catch (IOException error) {
            drop();
            if (task != null) task.killTaskIfInterrupted();
            throw new IOException(
                error.getMessage() + ". It was killed, most likely because its machine ran out of memory, or is not a "
                    + "Python that has duramen: PYSPARK_PYTHON names it", error);
        } catch (RuntimeException | Error error) {
            drop();
            throw error;
        }
    }

    private void open() throws IOException {
        ObjectNode request = PythonProcess.JSON.createObjectNode().put("do", "read");
        request.put("wanted", wanted).put("split", split);
        if (done > 0 || after >= 0) request.put("done", done).put("after", after);
        JsonNode answer;
        try {
            answer = begin(request);
        } catch (IOException ended) { // an idle process may have ended since it was used last
            if (process != null) process.close();
            answer = begin(request);
        }
        if (answer.has("error")) throw Planner.taskError(answer.get("error").asText());
        allocator = ArrowUtils.rootAllocator().newChildAllocator("duramen", 0, Long.MAX_VALUE);
        stream = new ArrowStreamReader(new Exactly(process.out), allocator);
    }

    private JsonNode begin(ObjectNode request) throws IOException {
        process = PythonProcess.borrow(python);
        process.endWith(task);
        return process.ask(request);
    }

    private void show(VectorSchemaRoot root) {
        List<FieldVector> vectors = root.getFieldVectors();
        if (vectors.size() == 1 && vectors.get(0).getName().equals(NO_COLUMNS)) {
            batch = new ColumnarBatch(new ColumnVector[0], (int) ((BigIntVector) vectors.get(0)).get(0));
            return;
        }
        if (batch == null) {
            ColumnVector[] columns = new ColumnVector[vectors.size()];
            for (int i = 0; i < columns.length; i++) columns[i] = new Shown(vectors.get(i));
            batch = new ColumnarBatch(columns);
        }
        batch.setNumRows(root.getRowCount());
    }

    /** After the stream comes a line that says whether it was all. */
    private void finish() throws IOException {
        JsonNode answer = process.answer();
        PythonProcess done = process;
        process = null;
        isOver = true;
        done.release();
        closeStream();
        if (answer.has("error")) throw Planner.taskError(answer.get("error").asText());
    }

    @Override
    public ColumnarBatch get() {
        return batch;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        return new CustomTaskMetric[] {new Metrics.Value(Metrics.PYTHON, batches)};
    }

    long batches() {
        return batches;
    }

    /**
     * A task that needs no more rows asks Python to end the stream, so that the process serves the next one. One that was
     * cancelled does not wait for that.
     */
    @Override
    public void close() {
        if (process == null || stream == null || (task != null && task.isInterrupted())) {
            drop();
            return;
        }
        try {
            process.tell(PythonProcess.JSON.createObjectNode().put("do", "stop"));
            while (stream.loadNextBatch()) continue;
            process.answer();
            process.release();
            process = null;
        } catch (IOException | RuntimeException ended) {
            // a new process reads the next split
        } finally {
            drop();
        }
    }

    private void drop() {
        isOver = true;
        if (process != null) process.close();
        process = null;
        closeStream();
    }

    private void closeStream() {
        try {
            if (stream != null) stream.close(false);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        } finally {
            stream = null;
            if (allocator != null) allocator.close();
            allocator = null;
        }
    }

    /** Spark closes a batch that it has used up; its vectors hold the next one then. */
    static final class Shown extends ArrowColumnVector {
        Shown(FieldVector vector) {
            super(vector);
        }

        @Override
        public void close() {
            // with the stream
        }
    }

    /** A stream as a channel that reads no byte too many: other lines follow. An end in a message is an error. */
    private static final class Exactly implements ReadableByteChannel {
        private final InputStream in;
        private byte[] chunk = new byte[1 << 12];

        Exactly(InputStream in) {
            this.in = in;
        }

        @Override
        public int read(ByteBuffer into) throws IOException {
            if (into.remaining() > chunk.length && chunk.length < 1 << 18) chunk = new byte[1 << 18];
            int count = in.read(chunk, 0, Math.min(into.remaining(), chunk.length));
            if (count < 0) throw new EOFException("the Python process of duramen ended while it read");
            into.put(chunk, 0, count);
            return count;
        }

        @Override
        public boolean isOpen() {
            return true;
        }

        @Override
        public void close() {
            // the process is closed by its user
        }
    }
}

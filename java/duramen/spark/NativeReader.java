package duramen.spark;

import java.io.IOException;

import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * One split, read by the kernel in this process. Where a piece is not exactly what the planner said, Python reads on,
 * from the record after the last one that was handed over: it says what is wrong, or that nothing is.
 */
final class NativeReader implements PartitionReader<ColumnarBatch> {
    private final ReaderFactory factory;
    private final SplitPartition partition;
    private final TaskContext task = TaskContext.get();
    private NativeSplit split;
    private BufferAllocator allocator;
    private NativeColumns columns;
    private int done;
    private NativePiece piece;
    private long lastOffset = -1;
    private PythonReader python;
    private ColumnarBatch batch;
    private BigIntVector[] aggregates;
    private boolean isOver;
    private long batches;

    NativeReader(ReaderFactory factory, SplitPartition partition) {
        this.factory = factory;
        this.partition = partition;
    }

    @Override
    public boolean next() throws IOException {
        if (python == null && !isOver) {
            if (split == null) begin();
            if (split.aggregates().length > 0 ? aggregate() : nextBatch()) return true;
            closeNative();
        }
        if (python == null) return false;
        boolean isThere = python.next();
        if (isThere) batch = python.get();
        return isThere;
    }

    private void begin() throws IOException {
        split = NativeSplit.of(partition.described());
        allocator = ArrowUtils.rootAllocator().newChildAllocator("duramen native", 0, Long.MAX_VALUE);
        columns = new NativeColumns(allocator, split.columns());
    }

    /** Whether there are rows; if not, the split is at its end, or {@code python} reads on. */
    private boolean nextBatch() {
        while (done < split.pieces().size()) {
            int rows = fill();
            if (rows > 0) {
                batches++;
                batch = columns.batch();
                return true;
            }
            if (rows < 0) {
                python = new PythonReader(factory.python(), factory.wanted(), partition.split(), done, lastOffset);
                return false;
            }
        }
        isOver = true;
        return false;
    }

    /** Rows of the piece that is being read, 0 at its end, or {@link NativePiece#PYTHON}. */
    private int fill() {
        if (piece == null) {
            NativeSplit.Piece next = split.pieces().get(done);
            lastOffset = -1;
            piece = next.open();
            if (piece == null) return NativePiece.PYTHON;
            columns.show(next);
        }
        int rows = columns.fill(piece, task);
        if (rows > 0) lastOffset = columns.lastOffset();
        if (rows == 0) {
            closePiece();
            done++;
        }
        return rows;
    }

    /** One row of the whole split; nothing of it was handed over where Python must read. */
    private boolean aggregate() {
        long count = split.counted().get(0).asLong();
        long low = split.counted().get(1).asLong(Long.MAX_VALUE), high = split.counted().get(2).asLong(Long.MIN_VALUE);
        while (done < split.pieces().size()) {
            int rows = fill();
            if (rows < 0) {
                python = new PythonReader(factory.python(), factory.wanted(), partition.split());
                return false;
            }
            if (rows > 0) {
                count += rows;
                low = Math.min(low, columns.firstOffset());
                high = Math.max(high, columns.lastOffset());
            }
        }
        showAggregates(count, low, high);
        isOver = true;
        batches++;
        return true;
    }

    private void showAggregates(long count, long low, long high) {
        String[] names = split.aggregates();
        aggregates = new BigIntVector[names.length];
        ColumnVector[] shown = new ColumnVector[names.length];
        for (int i = 0; i < names.length; i++) {
            aggregates[i] = new BigIntVector(names[i], allocator);
            aggregates[i].allocateNew(1);
            boolean isCount = names[i].equals("count");
            if (isCount || count > 0) aggregates[i].set(0, isCount ? count : names[i].equals("min") ? low : high);
            else aggregates[i].setNull(0);
            aggregates[i].setValueCount(1);
            shown[i] = new PythonReader.Shown(aggregates[i]);
        }
        batch = new ColumnarBatch(shown, 1);
    }

    @Override
    public ColumnarBatch get() {
        return batch;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        return new CustomTaskMetric[] {
            new Metrics.Value(Metrics.NATIVE, batches),
            new Metrics.Value(Metrics.PYTHON, python == null ? 0 : python.batches()),
            new Metrics.Value(Metrics.HANDED_OVER, python == null ? 0 : 1),
        };
    }

    private void closePiece() {
        if (piece != null) piece.close();
        piece = null;
    }

    private void closeNative() {
        closePiece();
        if (isOver && aggregates != null) return; // their row is still shown
        closeMemory();
    }

    private void closeMemory() {
        if (aggregates != null) for (BigIntVector one : aggregates) one.close();
        aggregates = null;
        if (columns != null) columns.close();
        columns = null;
        if (allocator != null) allocator.close();
        allocator = null;
    }

    @Override
    public void close() {
        isOver = true;
        closePiece();
        closeMemory();
        if (python != null) python.close();
    }
}

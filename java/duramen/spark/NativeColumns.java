package duramen.spark;

import java.util.Map;
import java.util.TreeMap;

import duramen.spark.NativePiece.Batch;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of a native batch: Arrow vectors that the kernel fills at their addresses, and constants. */
final class NativeColumns implements AutoCloseable {
    private static final int ROWS = 1 << 16;
    private static final long VALUES_BYTES = 1 << 20;
    private static final long KEYS_BYTES = 256 << 10;
    private static final long MAX_BYTES = Integer.MAX_VALUE;
    private static final DataType HEADERS = new ArrayType(
        new StructType().add("key", DataTypes.StringType).add("value", DataTypes.BinaryType), true);

    private final BufferAllocator allocator;
    private final Map<String, FieldVector> vectors = new TreeMap<>();
    private final Map<String, ConstantColumnVector> constants = new TreeMap<>();
    private final ColumnarBatch batch;
    private final long[] numbers = new long[Batch.COUNT];

    NativeColumns(BufferAllocator allocator, String[] names) {
        this.allocator = allocator;
        ColumnVector[] columns = new ColumnVector[names.length];
        for (int i = 0; i < names.length; i++) columns[i] = column(names[i]);
        batch = new ColumnarBatch(columns);
        for (FieldVector one : vectors.values()) {
            if (one instanceof BaseFixedWidthVector fixed) fixed.allocateNew(ROWS);
        }
        if (values() != null) values().allocateNew(VALUES_BYTES, ROWS);
        if (keys() != null) keys().allocateNew(KEYS_BYTES, ROWS);
        if (vectors.containsKey("key") || constants.containsKey("headers")) set(Batch.WANTS_BLOCKS, 1);
        set(Batch.CAPACITY, ROWS);
        point();
    }

    private ColumnVector column(String name) {
        FieldVector vector = switch (name) {
            case "offset", "position" -> new BigIntVector(name, allocator);
            case "timestamp" -> new TimeStampMicroTZVector(name, allocator, "UTC");
            case "timestampType" -> new IntVector(name, allocator);
            case "value", "key" -> new VarBinaryVector(name, allocator);
            default -> null;
        };
        if (vector == null) return constant(name);
        vectors.put(name, vector);
        return new PythonReader.Shown(vector);
    }

    /** Of the place of all records of a piece; headers are null, or else Python reads. */
    private ColumnVector constant(String name) {
        DataType type = switch (name) {
            case "partition" -> DataTypes.IntegerType;
            case "headers" -> HEADERS;
            default -> DataTypes.StringType;
        };
        ConstantColumnVector made = new ConstantColumnVector(1, type);
        made.setNull();
        constants.put(name, made);
        return made;
    }

    private VarBinaryVector values() {
        return (VarBinaryVector) vectors.get("value");
    }

    private VarBinaryVector keys() {
        return (VarBinaryVector) vectors.get("key");
    }

    private void set(Batch name, long number) {
        numbers[name.ordinal()] = number;
    }

    private long get(Batch name) {
        return numbers[name.ordinal()];
    }

    /** Tell the kernel where the buffers are. */
    private void point() {
        for (Map.Entry<String, FieldVector> one : vectors.entrySet()) {
            long data = one.getValue().getDataBuffer().memoryAddress();
            ArrowBuf valid = one.getValue().getValidityBuffer();
            switch (one.getKey()) {
                case "offset" -> set(Batch.OFFSET, data);
                case "position" -> set(Batch.POSITION, data);
                case "timestampType" -> set(Batch.TIME_KIND, data);
                case "timestamp" -> {
                    set(Batch.TIMESTAMP, data);
                    set(Batch.TIMESTAMP_VALID, valid.memoryAddress());
                }
                case "value" -> {
                    set(Batch.VALUES, data);
                    set(Batch.VALUES_BYTES, Math.min(one.getValue().getDataBuffer().capacity(), MAX_BYTES));
                    set(Batch.VALUE_VALID, valid.memoryAddress());
                    set(Batch.VALUE_OFFSETS, one.getValue().getOffsetBuffer().memoryAddress());
                }
                default -> {
                    set(Batch.KEYS, data);
                    set(Batch.KEYS_BYTES, Math.min(one.getValue().getDataBuffer().capacity(), MAX_BYTES));
                    set(Batch.KEY_VALID, valid.memoryAddress());
                    set(Batch.KEY_OFFSETS, one.getValue().getOffsetBuffer().memoryAddress());
                }
            }
        }
    }

    void show(NativeSplit.Piece piece) {
        constants.forEach((name, one) -> {
            switch (name) {
                case "topic" -> one.setUtf8String(UTF8String.fromString(piece.topic()));
                case "segment" -> one.setUtf8String(UTF8String.fromString(piece.segment()));
                case "partition" -> one.setInt(piece.partition());
                default -> {
                    return;
                }
            }
            one.setNotNull();
        });
    }

    /** Rows, 0 at the end of the piece, or {@link NativePiece#PYTHON}. Buffers that are too small grow. */
    int fill(NativePiece piece, TaskContext task) {
        while (true) {
            if (task != null) task.killTaskIfInterrupted();
            int rows = piece.next(numbers);
            if (rows == NativePiece.AGAIN) continue;
            if (rows >= 0 || rows == NativePiece.PYTHON) {
                if (rows > 0) show(rows);
                return rows;
            }
            long needed = get(Batch.NEEDED_BYTES);
            if (needed > MAX_BYTES) return NativePiece.PYTHON;
            VarBinaryVector small = rows == NativePiece.VALUE_ROOM ? values() : keys();
            small.clear();
            small.allocateNew(needed, ROWS);
            point();
        }
    }

    private void show(int rows) {
        for (Map.Entry<String, FieldVector> one : vectors.entrySet()) {
            FieldVector vector = one.getValue();
            if (vector instanceof VarBinaryVector binary) binary.setLastSet(rows - 1);
            boolean isNeverNull = !(vector instanceof VarBinaryVector) && !one.getKey().equals("timestamp");
            if (isNeverNull) vector.getValidityBuffer().setOne(0, (rows + 7L) / 8);
            vector.setValueCount(rows);
        }
        batch.setNumRows(rows);
    }

    long firstOffset() {
        return get(Batch.FIRST_OFFSET);
    }

    long lastOffset() {
        return get(Batch.LAST_OFFSET);
    }

    ColumnarBatch batch() {
        return batch;
    }

    @Override
    public void close() {
        vectors.values().forEach(FieldVector::close);
    }
}

package duramen.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of a native batch: Arrow vectors that the kernel fills at their addresses, and constants. */
final class NativeColumns implements AutoCloseable {
    private static final int ROWS = 1 << 16;
    private static final long VALUES_BYTES = 1 << 20;
    private static final long OTHER_BYTES = 256 << 10;
    private static final long MAX_BYTES = Integer.MAX_VALUE;
    private static final Field HEADERS = new Field("headers", FieldType.nullable(new ArrowType.List()), List.of(
        new Field("element", FieldType.nullable(new ArrowType.Struct()), List.of(
            Field.notNullable("key", new ArrowType.Utf8()), Field.nullable("value", new ArrowType.Binary())))));

    /** Bytes of a column, and where their numbers begin: the room for them, offsets, data, validity. */
    private record Binary(BaseVariableWidthVector vector, int at) {}

    private final BufferAllocator allocator;
    private final Map<String, FieldVector> vectors = new TreeMap<>();
    private final Map<String, ConstantColumnVector> constants = new TreeMap<>();
    private final List<Binary> binaries = new ArrayList<>();
    private ListVector headers;
    private final ColumnarBatch batch;
    private final long[] numbers = new long[NativePiece.NUMBERS];

    NativeColumns(BufferAllocator allocator, String[] names) {
        this.allocator = allocator;
        ColumnVector[] columns = new ColumnVector[names.length];
        for (int i = 0; i < names.length; i++) columns[i] = column(names[i]);
        batch = new ColumnarBatch(columns);
        numbers[NativePiece.CAPACITY] = ROWS;
        binaries.forEach(this::point);
    }

    private ColumnVector column(String name) {
        FieldVector made = switch (name) {
            case "offset" -> fixed(new BigIntVector(name, allocator), NativePiece.OFFSET);
            case "position" -> fixed(new BigIntVector(name, allocator), NativePiece.POSITION);
            case "timestamp" -> fixed(new TimeStampMicroTZVector(name, allocator, "UTC"), NativePiece.TIMESTAMP);
            case "timestampType" -> fixed(new IntVector(name, allocator), NativePiece.TIME_KIND);
            case "value" -> binary(new VarBinaryVector(name, allocator), NativePiece.VALUES, VALUES_BYTES);
            case "key" -> binary(new VarBinaryVector(name, allocator), NativePiece.KEYS, OTHER_BYTES);
            case "headers" -> lists();
            default -> null;
        };
        if (made == null) return constant(name);
        vectors.put(name, made);
        return new PythonReader.Shown(made);
    }

    /** Of the place of all records of a piece. */
    private ColumnVector constant(String name) {
        boolean isNumber = name.equals("partition");
        ConstantColumnVector made = new ConstantColumnVector(1, isNumber ? DataTypes.IntegerType : DataTypes.StringType);
        constants.put(name, made);
        return made;
    }

    private FieldVector fixed(FieldVector vector, int at) {
        vector.setInitialCapacity(ROWS);
        vector.allocateNew();
        numbers[at] = vector.getDataBuffer().memoryAddress();
        if (at == NativePiece.TIMESTAMP) numbers[at + 1] = vector.getValidityBuffer().memoryAddress();
        return vector;
    }

    private FieldVector binary(BaseVariableWidthVector vector, int at, long bytes) {
        vector.allocateNew(bytes, ROWS);
        binaries.add(new Binary(vector, at));
        return vector;
    }

    private FieldVector lists() {
        headers = (ListVector) HEADERS.createVector(allocator);
        headers.setInitialCapacity(ROWS);
        headers.allocateNew();
        numbers[NativePiece.HEADERS] = ROWS;
        numbers[NativePiece.LIST_OFFSETS] = headers.getOffsetBuffer().memoryAddress();
        numbers[NativePiece.LIST_OFFSETS + 1] = headers.getValidityBuffer().memoryAddress();
        binary((BaseVariableWidthVector) pairs().getChild("key"), NativePiece.HEADER_KEYS, OTHER_BYTES);
        binary((BaseVariableWidthVector) pairs().getChild("value"), NativePiece.HEADER_VALUES, OTHER_BYTES);
        return headers;
    }

    private StructVector pairs() {
        return (StructVector) headers.getDataVector();
    }

    /** Tell the kernel where the buffers are. */
    private void point(Binary one) {
        ArrowBuf data = one.vector.getDataBuffer();
        numbers[one.at] = Math.min(data.capacity(), MAX_BYTES);
        numbers[one.at + 1] = one.vector.getOffsetBuffer().memoryAddress();
        numbers[one.at + 2] = data.memoryAddress();
        numbers[one.at + 3] = one.vector.getValidityBuffer().memoryAddress();
    }

    void show(NativeSplit.Piece piece) {
        constants.forEach((name, one) -> {
            if (name.equals("partition")) one.setInt(piece.partition());
            else one.setUtf8String(UTF8String.fromString(name.equals("topic") ? piece.topic() : piece.segment()));
        });
    }

    /** Rows, 0 at the end of the piece, or {@link NativePiece#PYTHON}. Buffers that are too small grow. */
    int fill(NativePiece piece, TaskContext task) {
        while (true) {
            if (task != null) task.killTaskIfInterrupted();
            int rows = piece.next(numbers);
            if (rows == NativePiece.AGAIN) continue;
            if (rows == NativePiece.ROOM && grow()) continue;
            if (rows > 0) show(rows);
            return rows >= 0 ? rows : NativePiece.PYTHON;
        }
    }

    /** Whether there can be as much room as the kernel asks for. */
    private boolean grow() {
        long pairs = numbers[NativePiece.HEADERS];
        for (Binary one : binaries) {
            long needed = numbers[one.at];
            if (needed > MAX_BYTES) return false;
            boolean isOfHeaders = one.at >= NativePiece.HEADERS;
            int count = isOfHeaders ? (int) pairs : ROWS;
            if (needed <= one.vector.getDataBuffer().capacity() && count <= one.vector.getValueCapacity()) continue;
            one.vector.clear();
            one.vector.allocateNew(needed, count);
            point(one);
        }
        return true;
    }

    private void show(int rows) {
        if (headers != null) {
            int pairs = headers.getOffsetBuffer().getInt(4L * rows);
            headers.setLastSet(rows - 1);
            show(pairs().getChild("key"), pairs);
            show(pairs().getChild("value"), pairs);
            pairs().setValueCount(pairs);
            pairs().getValidityBuffer().setOne(0, (pairs + 7L) / 8);
        }
        vectors.forEach((name, vector) -> {
            boolean isNeverNull = vector instanceof BigIntVector || vector instanceof IntVector;
            if (isNeverNull) vector.getValidityBuffer().setOne(0, (rows + 7L) / 8);
            show(vector, rows);
        });
        batch.setNumRows(rows);
    }

    private static void show(FieldVector vector, int rows) {
        if (vector instanceof BaseVariableWidthVector binary) binary.setLastSet(rows - 1);
        vector.setValueCount(rows);
    }

    long firstOffset() {
        return numbers[NativePiece.FIRST_OFFSET];
    }

    long lastOffset() {
        return numbers[NativePiece.LAST_OFFSET];
    }

    ColumnarBatch batch() {
        return batch;
    }

    @Override
    public void close() {
        vectors.values().forEach(FieldVector::close);
    }
}

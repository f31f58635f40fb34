package duramen.spark;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxBytes;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.ReadMinRows;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The log as a stream. A Python process of its own has the logs open and decides everything; this passes Spark's
 * questions on. Offsets are Python's text, so that a checkpoint serves both engines.
 */
final class DuramenStream implements MicroBatchStream, SupportsTriggerAvailableNow, ReportsSourceMetrics {
    private final CaseInsensitiveStringMap options;
    private final StructType schema;
    private final Pushed pushed;
    private final boolean isNative;
    private PythonProcess process;
    private JsonNode lag;

    DuramenStream(CaseInsensitiveStringMap options, StructType schema, Pushed pushed, boolean isNative) {
        this.isNative = isNative;
        this.pushed = pushed;
        this.options = options;
        this.schema = schema;
    }

    /** As the offsets of a Python data source. */
    private static final class Position extends Offset {
        private final String json;

        Position(String json) {
            this.json = json;
        }

        @Override
        public String json() {
            return json;
        }
    }

    private synchronized JsonNode call(String name, Offset... offsets) {
        return call(name, null, offsets);
    }

    private synchronized JsonNode call(String name, ObjectNode limit, Offset... offsets) {
        try {
            if (process == null) {
                process = PythonProcess.borrow(Planner.driverPython());
                ObjectNode opening = Planner.request("stream", options);
                pushed.putFields(opening, schema);
                Planner.checked(process.ask(opening.put("schema", pushed.wholeColumns(schema).json())));
            }
            ObjectNode request = PythonProcess.JSON.createObjectNode().put("do", "call").put("call", name).put("native", isNative);
            for (Offset one : offsets) request.withArray("offsets").add(one.json());
            if (limit != null) request.set("limit", limit);
            return Planner.checked(process.ask(request));
        } catch (IOException error) {
            stop();
            throw Planner.noPython(error);
        }
    }

    @Override
    public Offset initialOffset() {
        return new Position(call("initialOffset").get("offset").asText());
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new Position(json);
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("latestOffset(Offset, ReadLimit) is called instead");
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        ObjectNode asked = PythonProcess.JSON.createObjectNode();
        if (limit instanceof ReadMaxRows rows) asked.put("rows", rows.maxRows());
        if (limit instanceof ReadMaxBytes bytes) asked.put("bytes", bytes.maxBytes());
        if (limit instanceof ReadMinRows rows) asked.put("least", rows.minRows()).put("delayMs", rows.maxTriggerDelayMs());
        return new Position(call("latestOffset", asked, start).get("offset").asText());
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        JsonNode limit = call("getDefaultReadLimit").get("limit");
        if (limit.has("rows")) return ReadLimit.maxRows(limit.get("rows").asLong());
        if (limit.has("bytes")) return ReadLimit.maxBytes(limit.get("bytes").asLong());
        if (limit.has("least")) return ReadLimit.minRows(limit.get("least").asLong(), 0);
        return ReadLimit.allAvailable();
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        call("prepareForTriggerAvailableNow");
    }

    @Override
    public Offset reportLatestOffset() {
        String json = call("reportLatestOffset").get("offset").asText();
        try {
            lag = PythonProcess.JSON.readTree(json).get("/lag");
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        return new Position(json);
    }

    /** The lag of the planned batch, under the names of Kafka's source, and the number of bytes. */
    @Override
    public Map<String, String> metrics(Optional<Offset> consumed) {
        Map<String, String> found = new HashMap<>();
        if (lag == null) return found;
        long most = 0, least = Long.MAX_VALUE, sum = 0;
        JsonNode partitions = lag.path("partitions");
        for (JsonNode one : partitions) {
            long records = one.path("records").asLong();
            most = Math.max(most, records);
            least = Math.min(least, records);
            sum += records;
        }
        if (partitions.isEmpty()) return found;
        found.put("minOffsetsBehindLatest", Long.toString(least));
        found.put("maxOffsetsBehindLatest", Long.toString(most));
        found.put("avgOffsetsBehindLatest", Double.toString((double) sum / partitions.size()));
        found.put("bytesBehindLatest", Long.toString(lag.path("bytes").asLong()));
        return found;
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        Plan plan = Planner.planOf(call("partitions", start, end));
        return plan.splits().toArray(new InputPartition[0]);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(Planner.workerPython(), call("wanted").get("wanted").asText());
    }

    @Override
    public void commit(Offset end) {
        call("commit", end);
    }

    /** The process holds open logs and the state of one query: it ends with it. */
    @Override
    public synchronized void stop() {
        if (process != null) process.close();
        process = null;
    }
}

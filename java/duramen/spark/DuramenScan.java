package duramen.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** One scan of a query; planned when Spark first asks for its size or its partitions. */
final class DuramenScan implements Scan, Batch, SupportsReportStatistics {
    private final DuramenTable table;
    private final CaseInsensitiveStringMap options;
    private final Pushed pushed;
    private final boolean isNative;
    private Plan plan;
    private boolean isStream;

    DuramenScan(DuramenTable table, CaseInsensitiveStringMap options, Pushed pushed, boolean isNative) {
        this.isNative = isNative;
        this.table = table;
        this.options = options;
        this.pushed = pushed;
    }

    private synchronized Plan plan() {
        if (plan == null) plan = table.plan(options, pushed, isNative);
        return plan;
    }

    @Override
    public StructType readSchema() {
        return pushed.columns();
    }

    @Override
    public String description() {
        List<String> said = new ArrayList<>();
        for (String[] one : pushed.conditions()) said.add(String.join(" ", one));
        return "duramen engine=jvm path=" + options.getOrDefault("path", options.getOrDefault("paths", ""))
            + " columns=" + String.join(",", pushed.columns().fieldNames())
            + (said.isEmpty() ? "" : " conditions=" + said)
            + (pushed.aggregates().isEmpty() ? "" : " aggregates=" + pushed.aggregates())
            + splitsInWords();
    }

    /** How many splits the JVM reads itself, once that is known. */
    private synchronized String splitsInWords() {
        if (plan == null) return "";
        long count = plan.splits().stream().filter(one -> one.described() != null).count();
        return " native=" + count + " of " + plan.splits().size() + " splits";
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        isStream = true;
        return new DuramenStream(options, table.schema(), pushed, isNative);
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return plan().splits().toArray(new InputPartition[0]);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(Planner.workerPython(), plan().wanted());
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return ColumnarSupportMode.SUPPORTED;
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return Metrics.all();
    }

    @Override
    public Statistics estimateStatistics() {
        // Spark asks a stream, too, at each micro-batch; a plan of the whole log would not be about that.
        OptionalLong size = isStream ? OptionalLong.empty() : OptionalLong.of(plan().bytes());
        return new Size(size, OptionalLong.empty());
    }

    private record Size(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {}
}

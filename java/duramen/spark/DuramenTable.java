package duramen.spark;

import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One {@code load}: everything derived from it shows the records that were acknowledged when its first action was
 * planned. Writing is the Python sink's.
 */
final class DuramenTable implements SupportsRead, SupportsWrite {
    private final PythonDataSourceV2 python;
    private final StructType schema;
    private final CaseInsensitiveStringMap properties;
    private final Map<Map<String, String>, String> snapshots = new HashMap<>();

    DuramenTable(PythonDataSourceV2 python, StructType schema, CaseInsensitiveStringMap properties) {
        this.python = python;
        this.schema = schema;
        this.properties = Engine.optionsOf(properties);
    }

    @Override
    public String name() {
        return Engine.NAME;
    }

    @Override
    @SuppressWarnings("deprecation")
    public StructType schema() {
        return schema;
    }

    @Override
    public Map<String, String> properties() {
        return Map.of();
    }

    @Override
    public Set<TableCapability> capabilities() {
        return pythonTable().capabilities();
    }

    private PythonTable pythonTable() {
        return new PythonTable(python, Engine.NAME, schema);
    }

    /** Spark's Python source keeps the first options that it gets, so other ones have a source of their own. */
    private PythonTable pythonTable(CaseInsensitiveStringMap options) {
        return options.equals(properties) ? pythonTable() : new PythonTable(Engine.pythonSource(), Engine.NAME, schema);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        CaseInsensitiveStringMap options = with(given);
        CaseInsensitiveStringMap rest = Engine.without(options);
        Engine engine = Engine.of(options);
        if (engine == Engine.PYTHON) return pythonTable(options).newScanBuilder(rest);
        return new DuramenScanBuilder(this, schema, rest, engine != Engine.ARROW);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        CaseInsensitiveStringMap options = with(info.options());
        Engine.of(options); // which refuses others
        return pythonTable(options).newWriteBuilder(new WriteInfo(
            info.queryId(), info.schema(), Engine.without(options), info.rowIdSchema(), info.metadataSchema()));
    }

    /** The options of a query over those of the table, which a catalogue keeps as properties. */
    private CaseInsensitiveStringMap with(CaseInsensitiveStringMap given) {
        Map<String, String> all = new HashMap<>(properties.asCaseSensitiveMap());
        given.asCaseSensitiveMap().forEach((name, text) -> {
            all.keySet().removeIf(name::equalsIgnoreCase);
            all.put(name, text);
        });
        return new CaseInsensitiveStringMap(all);
    }

    /** Plan, and keep what the first plan with these options saw. */
    Plan plan(CaseInsensitiveStringMap options, Pushed pushed, boolean isNative) {
        Map<String, String> key = new HashMap<>(options);
        String seen;
        synchronized (snapshots) {
            seen = snapshots.get(key);
            if (seen == null) {
                Plan first = Planner.plan(options, schema, pushed, null, isNative);
                snapshots.put(key, first.snapshot());
                return first;
            }
        }
        return Planner.plan(options, schema, pushed, seen, isNative);
    }

    private record WriteInfo(
        String queryId, StructType schema, CaseInsensitiveStringMap options, Optional<StructType> rowIdSchema,
        Optional<StructType> metadataSchema) implements LogicalWriteInfo {}
}

package duramen.spark;

import java.util.Map;

import org.apache.spark.sql.connector.catalog.SessionConfigSupport;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What {@code format("duramen")} finds where the jar is on the class path: Spark prefers a registered class to a Python
 * data source of the same name. With {@code engine=python} it is that Python data source.
 */
public final class DuramenProvider implements DataSourceRegister, SessionConfigSupport {
    private final PythonDataSourceV2 python = Engine.pythonSource();

    @Override
    public String shortName() {
        return Engine.NAME;
    }

    @Override
    public String keyPrefix() {
        return Engine.NAME;
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap given) {
        CaseInsensitiveStringMap options = Engine.optionsOf(given);
        Engine engine = Engine.of(options);
        if (engine == Engine.PYTHON) return python.inferSchema(Engine.without(options));
        return Planner.schema(Engine.without(options));
    }

    @Override
    public Transform[] inferPartitioning(CaseInsensitiveStringMap options) {
        return new Transform[0];
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new DuramenTable(python, schema, new CaseInsensitiveStringMap(properties));
    }
}

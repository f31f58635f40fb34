package duramen.spark;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The option {@code engine}: who reads. With ARROW the JVM takes the columns that Python decodes, of all splits. */
enum Engine {
    AUTO, JVM, ARROW, PYTHON;

    static final String NAME = "duramen";
    private static final String OPTION = "engine";

    private static final Set<String> OF_CATALOGUE = Set.of(
        TableCatalog.PROP_LOCATION, TableCatalog.PROP_IS_MANAGED_LOCATION, TableCatalog.PROP_EXTERNAL,
        TableCatalog.PROP_TABLE_TYPE, TableCatalog.PROP_COMMENT, TableCatalog.PROP_COLLATION,
        TableCatalog.PROP_PROVIDER, TableCatalog.PROP_OWNER);

    /**
     * The options among what a catalogue knows about a table. A table without a path has one in Spark's warehouse, where
     * no log is.
     */
    static CaseInsensitiveStringMap optionsOf(CaseInsensitiveStringMap properties) {
        if (!NAME.equalsIgnoreCase(properties.get(TableCatalog.PROP_PROVIDER))) return properties;
        Map<String, String> options = new HashMap<>(properties.asCaseSensitiveMap());
        options.keySet().removeIf(name -> OF_CATALOGUE.contains(name) || isRepeated(name, properties));
        String path = properties.get("path");
        if (path != null && !properties.containsKey(TableCatalog.PROP_LOCATION)) options.remove("path");
        else if (path != null && path.startsWith("file:")) options.put("path", new Path(path).toUri().getPath());
        return new CaseInsensitiveStringMap(options);
    }

    /** A catalogue keeps an option under its own name, and once more with a prefix. */
    private static boolean isRepeated(String name, CaseInsensitiveStringMap properties) {
        String prefix = TableCatalog.OPTION_PREFIX;
        return name.startsWith(prefix) && properties.containsKey(name.substring(prefix.length()));
    }

    static Engine of(CaseInsensitiveStringMap options) {
        String text = options.getOrDefault(OPTION, "auto").strip();
        for (Engine one : values()) {
            if (one.name().equals(text.toUpperCase(Locale.ROOT))) return one;
        }
        throw Planner.sourceError(
            "create", "instance",
            "duramen.errors.UsageError: option engine='" + text + "' is not valid (allowed: auto, jvm, arrow, python)");
    }

    static PythonDataSourceV2 pythonSource() {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(NAME);
        return source;
    }

    static CaseInsensitiveStringMap without(CaseInsensitiveStringMap options) {
        Map<String, String> rest = new HashMap<>(options.asCaseSensitiveMap());
        rest.keySet().removeIf(OPTION::equalsIgnoreCase);
        return new CaseInsensitiveStringMap(rest);
    }
}

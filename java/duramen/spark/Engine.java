package duramen.spark;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The option {@code engine}: who reads. */
enum Engine {
    AUTO, JVM, PYTHON;

    static final String NAME = "duramen";
    private static final String OPTION = "engine";
    /** What a catalogue calls an option of a table beside its own name. */
    private static final String OF_TABLE = "option.engine";

    static Engine of(CaseInsensitiveStringMap options) {
        String text = options.getOrDefault(OPTION, options.getOrDefault(OF_TABLE, "auto")).strip();
        for (Engine one : values()) {
            if (one.name().equals(text.toUpperCase(Locale.ROOT))) return one;
        }
        throw Planner.sourceError(
            "create", "instance",
            "duramen.errors.UsageError: option engine='" + text + "' is not valid (allowed: auto, jvm, python)");
    }

    static CaseInsensitiveStringMap without(CaseInsensitiveStringMap options) {
        Map<String, String> rest = new HashMap<>(options.asCaseSensitiveMap());
        rest.keySet().removeIf(name -> name.equalsIgnoreCase(OPTION) || name.equalsIgnoreCase(OF_TABLE));
        return new CaseInsensitiveStringMap(rest);
    }
}

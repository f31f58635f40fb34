package duramen.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.PythonException;
import org.apache.spark.sql.errors.QueryCompilationErrors;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Tuple2;
import scala.jdk.javaapi.CollectionConverters;

/** Asks Python, on the driver, for schemas and plans, and raises its errors as those of a Python data source. */
final class Planner {
    private Planner() {}

    static StructType schema(CaseInsensitiveStringMap options) {
        JsonNode answer = ask(request("schema", options));
        return (StructType) DataType.fromJson(answer.get("schema").asText());
    }

    static Plan plan(
        CaseInsensitiveStringMap options, StructType schema, Pushed pushed, String snapshot, boolean isNative) {
        ObjectNode request = request("plan", options).put("native", isNative);
        request.put("schema", schema.json());
        pushed.putFields(request, schema);
        if (pushed.aggregates().isEmpty()) {
            putAll(request.putArray("columns"), pushed.columns().fieldNames());
        } else {
            putAll(request.putArray("aggregates"), pushed.aggregates().toArray(new String[0]));
        }
        ArrayNode conditions = request.putArray("conditions");
        for (String[] one : pushed.conditions()) putAll(conditions.addArray(), one);
        if (snapshot != null) request.put("snapshot", snapshot);
        return planOf(ask(request));
    }

    static Plan planOf(JsonNode answer) {
        List<SplitPartition> splits = new ArrayList<>();
        JsonNode packed = answer.get("splits"), native_ = answer.path("native");
        for (int i = 0; i < packed.size(); i++) {
            splits.add(new SplitPartition(packed.get(i).asText(), native_.path(i).asText(null)));
        }
        return new Plan(
            splits, answer.get("wanted").asText(), answer.path("snapshot").asText(),
            answer.path("bytes").asLong());
    }

    static ObjectNode request(String what, CaseInsensitiveStringMap options) {
        ObjectNode request = PythonProcess.JSON.createObjectNode().put("do", what);
        ObjectNode given = request.putObject("options");
        for (Map.Entry<String, String> one : options.asCaseSensitiveMap().entrySet()) {
            given.put(one.getKey(), one.getValue());
        }
        return request;
    }

    private static void putAll(ArrayNode into, String[] texts) {
        for (String text : texts) into.add(text);
    }

    /** Once more with a new process where one has ended between two requests: planning changes nothing. */
    private static JsonNode ask(ObjectNode request) {
        try {
            try {
                return askOnce(request);
            } catch (IOException ended) {
                return askOnce(request);
            }
        } catch (IOException error) {
            throw noPython(error);
        }
    }

    private static JsonNode askOnce(ObjectNode request) throws IOException {
        PythonProcess process = PythonProcess.borrow(driverPython());
        JsonNode answer;
        try {
            answer = process.ask(request);
        } catch (IOException error) {
            process.close();
            throw error;
        }
        process.release();
        return checked(answer);
    }

    /** The answer, unless it is an error. */
    static JsonNode checked(JsonNode answer) {
        if (!answer.has("error")) return answer;
        String text = answer.get("error").asText();
        if (answer.has("call")) {
            throw unchecked(org.apache.spark.sql.errors.QueryExecutionErrors$.MODULE$.pythonStreamingDataSourceRuntimeError(
                answer.get("call").asText(), text + "\n"));
        }
        throw sourceError(answer.get("action").asText(), answer.get("of").asText(), text);
    }

    static RuntimeException sourceError(String action, String of, String text) {
        return unchecked(QueryCompilationErrors.pythonDataSourceError(action, of, text + "\n"));
    }

    /** What a task raises for an error of Python: the same as for one of a Python worker. */
    static RuntimeException taskError(String text) {
        scala.collection.immutable.Map<String, String> parameters = scala.collection.immutable.Map.from(
            CollectionConverters.asScala(List.of(
                new Tuple2<>("msg", "An exception was thrown from the Python worker"),
                new Tuple2<>("traceback", "\n" + text))));
        return new PythonException(
            "PYTHON_EXCEPTION", parameters, null, PythonException.$lessinit$greater$default$4(),
            PythonException.$lessinit$greater$default$5());
    }

    static RuntimeException noPython(IOException error) {
        return new IllegalStateException(
            error.getMessage() + ". PYSPARK_PYTHON must name a Python that has duramen; engine=python reads without "
                + "the JVM's engine", error);
    }

    @SuppressWarnings("unchecked")
    static <T extends Throwable> RuntimeException unchecked(Throwable error) throws T {
        throw (T) error;
    }

    static String driverPython() {
        return firstOf("spark.pyspark.driver.python", "PYSPARK_DRIVER_PYTHON", workerPython());
    }

    static String workerPython() {
        return firstOf("spark.pyspark.python", "PYSPARK_PYTHON", "python3");
    }

    private static String firstOf(String setting, String variable, String otherwise) {
        SparkConf conf = SparkEnv.get() == null ? new SparkConf() : SparkEnv.get().conf();
        String set = conf.get(setting, System.getenv(variable));
        return set == null || set.isBlank() ? otherwise : set;
    }
}

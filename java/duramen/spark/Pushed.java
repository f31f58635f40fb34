package duramen.spark;

import java.util.List;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * What Spark asked of one scan beside the options. {@code columns}: what to hand over. {@code conditions}: comparisons
 * that all rows of the result satisfy, such as {@code ["offset", ">=", "7"]}; Spark applies them again.
 * {@code aggregates}: {@code count}, {@code min} and {@code max} of offsets, one row per partition; empty for records.
 */
record Pushed(StructType columns, List<String[]> conditions, List<String> aggregates) {
    /** The columns as they are in a schema, whole. */
    StructType wholeColumns(StructType schema) {
        StructType whole = new StructType();
        for (String name : columns.fieldNames()) whole = whole.add(schema.apply(name));
        return whole;
    }

    /** Into a request: the fields to hand over of a column that is not handed over whole. */
    void putFields(ObjectNode request, StructType schema) {
        if (!aggregates.isEmpty()) return;
        ObjectNode fields = request.putObject("fields");
        for (StructField one : columns.fields()) {
            if (one.dataType().equals(schema.apply(one.name()).dataType())) continue;
            ArrayNode names = fields.putArray(one.name());
            for (String name : ((StructType) one.dataType()).fieldNames()) names.add(name);
        }
    }
}

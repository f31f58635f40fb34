package duramen.spark;

import java.util.List;

import org.apache.spark.sql.types.StructType;

/**
 * What Spark asked of one scan beside the options. {@code columns}: what to hand over. {@code conditions}: comparisons
 * that all rows of the result satisfy, such as {@code ["offset", ">=", "7"]}; Spark applies them again.
 * {@code aggregates}: {@code count}, {@code min} and {@code max} of offsets, one row per partition; empty for records.
 */
record Pushed(StructType columns, List<String[]> conditions, List<String> aggregates) {}

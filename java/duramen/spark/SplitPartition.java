package duramen.spark;

import org.apache.spark.sql.connector.read.InputPartition;

/**
 * The work of one task. {@code described}: what this JVM needs to read it itself, as JSON; null where Python must.
 */
record SplitPartition(String split, String described) implements InputPartition {}

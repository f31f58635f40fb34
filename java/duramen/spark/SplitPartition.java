package duramen.spark;

import org.apache.spark.sql.connector.read.InputPartition;

/** The work of one task. */
record SplitPartition(String split) implements InputPartition {}

package duramen.spark;

import java.util.List;

/** The splits of a read, and what Python must know to read them; all but the sizes is Python's own encoding. */
record Plan(List<SplitPartition> splits, String wanted, String snapshot, long bytes) {}

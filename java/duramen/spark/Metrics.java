package duramen.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What the page of a query shows beside the number of rows. */
public final class Metrics {
    private Metrics() {}

    /** Batches that Python decoded and handed over. */
    public static final class PythonBatches extends CustomSumMetric {
        @Override
        public String name() {
            return "duramenPythonBatches";
        }

        @Override
        public String description() {
            return "number of batches decoded by Python";
        }
    }

    static CustomMetric[] all() {
        return new CustomMetric[] {new PythonBatches()};
    }

    record Value(String name, long value) implements CustomTaskMetric {}
}

package duramen.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What the page of a query shows beside the number of rows. */
public final class Metrics {
    private Metrics() {}

    static final String NATIVE = "duramenNativeBatches";
    static final String PYTHON = "duramenPythonBatches";
    static final String HANDED_OVER = "duramenHandedOver";

    /** Batches that the kernel filled in the JVM. */
    public static final class NativeBatches extends CustomSumMetric {
        @Override
        public String name() {
            return NATIVE;
        }

        @Override
        public String description() {
            return "number of batches read in the JVM";
        }
    }

    /** Splits that the kernel began, or could not open, and Python read on. */
    public static final class HandedOver extends CustomSumMetric {
        @Override
        public String name() {
            return HANDED_OVER;
        }

        @Override
        public String description() {
            return "number of splits handed over to Python";
        }
    }

    /** Batches that Python decoded and handed over. */
    public static final class PythonBatches extends CustomSumMetric {
        @Override
        public String name() {
            return PYTHON;
        }

        @Override
        public String description() {
            return "number of batches decoded by Python";
        }
    }

    static CustomMetric[] all() {
        return new CustomMetric[] {new NativeBatches(), new PythonBatches(), new HandedOver()};
    }

    record Value(String name, long value) implements CustomTaskMetric {}
}

package duramen.spark;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Takes from Spark the columns it needs, comparisons of four columns with literals, and aggregates of offsets. Spark
 * keeps every condition: what is taken only narrows what is read.
 */
final class DuramenScanBuilder
    implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters, SupportsPushDownAggregates {
    private static final Map<String, DataType> COMPARED = Map.of(
        "offset", DataTypes.LongType, "timestamp", DataTypes.TimestampType,
        "topic", DataTypes.StringType, "partition", DataTypes.IntegerType);
    private static final Set<String> DECODED = Set.of("value", "key");
    private static final Set<String> SIGNS = Set.of("=", "<=>", "<", "<=", ">", ">=");
    private static final Map<String, String> FLIPPED =
        Map.of("=", "=", "<=>", "<=>", "<", ">", "<=", ">=", ">", "<", ">=", "<=");

    private final DuramenTable table;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private final boolean isNative;
    private final List<Predicate> taken = new ArrayList<>();
    private final List<String[]> conditions = new ArrayList<>();
    private final List<String> aggregates = new ArrayList<>();
    private StructType columns;

    DuramenScanBuilder(
        DuramenTable table, StructType schema, CaseInsensitiveStringMap options, boolean isNative) {
        this.isNative = isNative;
        this.table = table;
        this.schema = schema;
        this.options = options;
        this.columns = schema;
    }

    @Override
    public Scan build() {
        Pushed pushed = new Pushed(columns, List.copyOf(conditions), List.copyOf(aggregates));
        return new DuramenScan(table, options, pushed, isNative);
    }

    @Override
    public void pruneColumns(StructType required) {
        // Whole columns, and of decoded ones whole fields: a part of another struct is not asked for.
        StructType kept = new StructType();
        for (StructField one : required.fields()) kept = kept.add(partOf(schema.apply(one.name()), one.dataType()));
        columns = kept;
    }

    private static StructField partOf(StructField column, DataType required) {
        if (!DECODED.contains(column.name())) return column;
        if (!(column.dataType() instanceof StructType whole) || !(required instanceof StructType part)) return column;
        Set<String> names = new HashSet<>(List.of(part.fieldNames()));
        StructType kept = new StructType();
        for (StructField field : whole.fields()) if (names.contains(field.name())) kept = kept.add(field);
        return new StructField(column.name(), kept, column.nullable(), column.metadata());
    }

    /** With damage reported as rows, or one row per task, a condition on records would hide some. */
    private boolean hasPlainRows() {
        return !options.getOrDefault("onDamage", "fail").strip().equalsIgnoreCase("report")
            && !options.getOrDefault("summary", "false").strip().equalsIgnoreCase("true");
    }

    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
        if (hasPlainRows()) {
            for (Predicate one : predicates) {
                int before = conditions.size();
                take(one);
                if (conditions.size() > before) taken.add(one);
            }
        }
        return predicates;
    }

    @Override
    public Predicate[] pushedPredicates() {
        return taken.toArray(new Predicate[0]);
    }

    private void take(Expression one) {
        if (!(one instanceof Predicate predicate)) return;
        Expression[] children = predicate.children();
        if (predicate.name().equals("AND")) {
            for (Expression child : children) take(child);
        } else if (predicate.name().equals("IN") && children.length > 1) {
            takeList(children);
        } else if (SIGNS.contains(predicate.name()) && children.length == 2) {
            if (children[0] instanceof Literal<?>) {
                compare(children[1], FLIPPED.get(predicate.name()), children[0]);
            } else {
                compare(children[0], predicate.name(), children[1]);
            }
        }
    }

    private void compare(Expression left, String sign, Expression right) {
        String name = nameOf(left);
        String text = name == null ? null : textOf(name, right);
        if (text != null) conditions.add(new String[] {name, sign.equals("<=>") ? "=" : sign, text});
    }

    private void takeList(Expression[] children) {
        String name = nameOf(children[0]);
        if (name == null) return;
        List<String> texts = new ArrayList<>(List.of(name, "in"));
        for (int i = 1; i < children.length; i++) {
            String text = textOf(name, children[i]);
            if (text == null) return;
            texts.add(text);
        }
        conditions.add(texts.toArray(new String[0]));
    }

    private static String nameOf(Expression one) {
        if (!(one instanceof NamedReference named) || named.fieldNames().length != 1) return null;
        return COMPARED.containsKey(named.fieldNames()[0]) ? named.fieldNames()[0] : null;
    }

    private static String textOf(String name, Expression one) {
        if (!(one instanceof Literal<?> literal) || literal.value() == null) return null;
        return literal.dataType().equals(COMPARED.get(name)) ? literal.value().toString() : null;
    }

    @Override
    public boolean pushAggregation(Aggregation aggregation) {
        if (!hasPlainRows() || aggregation.groupByExpressions().length > 0) return false;
        List<String> found = new ArrayList<>();
        StructType made = new StructType();
        for (AggregateFunc function : aggregation.aggregateExpressions()) {
            String name = aggregateOf(function);
            if (name == null) return false;
            made = made.add(new StructField(name + found.size(), DataTypes.LongType, true, Metadata.empty()));
            found.add(name);
        }
        aggregates.addAll(found);
        columns = made;
        return true;
    }

    private static String aggregateOf(AggregateFunc function) {
        if (function instanceof CountStar) return "count";
        if (function instanceof Min min && isOffset(min.column())) return "min";
        if (function instanceof Max max && isOffset(max.column())) return "max";
        return null;
    }

    private static boolean isOffset(Expression one) {
        return "offset".equals(nameOf(one));
    }
}

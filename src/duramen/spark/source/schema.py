"""The columns of the data source as Spark and as Arrow see them. The two must agree exactly, or Spark refuses.

All columns are nullable for Spark: a null in a column that is declared not null gives wrong results.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from duramen.errors import UsageError
from duramen.spark.source.options import DEFAULT_COLUMNS, ReadOptions
from duramen.spark.source.task import DAMAGE, PAYLOAD_COLUMNS, Wanted

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
DAMAGE_TYPE = StructType(
    [
        StructField("path", StringType()),
        StructField("position", LongType()),
        StructField("end_position", LongType()),
        StructField("first_offset", LongType()),
        StructField("last_offset", LongType()),
        StructField("reason", StringType()),
    ]
)
MALFORMED_TYPE = StructType([StructField("reason", StringType()), StructField("bytes", BinaryType())])

COLUMNS: dict[str, DataType] = {
    "offset": LongType(),
    "timestamp": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": HEADERS,
    "topic": StringType(),
    "partition": IntegerType(),
    "segment": StringType(),
    "position": LongType(),
    "timestampType": IntegerType(),
}
KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of Spark's Kafka source, in its order and of its types."""


SUMMARY: dict[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "first_offset": LongType(),
    "last_offset": LongType(),
    "records": LongType(),
}
"""The columns of ``summary=true``: the records of one log in one task. Offsets are null where there is none."""


def schema_of(options: ReadOptions) -> StructType:
    """The schema of a read whose user gave none."""
    if options.summary:
        return StructType([StructField(name, kind) for name, kind in SUMMARY.items()])
    names = options.columns or (KAFKA_COLUMNS if options.is_kafka_schema else DEFAULT_COLUMNS)
    if options.include_headers and options.columns is None:
        names += ("headers",)
    for name in names:
        if name not in COLUMNS and not (name == DAMAGE and options.on_damage == "report"):
            raise UsageError(f"option columns: column {name!r} is not known", hint=f"allowed: {', '.join(COLUMNS)}")
    fields = [StructField(name, type_of(name, options)) for name in names if name != DAMAGE]
    fields += [StructField(name, MALFORMED_TYPE) for name in _raw_columns(options)]
    if options.on_damage == "report":
        fields.append(StructField(DAMAGE, DAMAGE_TYPE))
    return StructType(fields)


def type_of(name: str, options: ReadOptions) -> DataType:
    """The type of a column, which decoding may change."""
    decoders = {} if options.decoding is None else options.decoding.decoders
    if name not in decoders:
        return COLUMNS[name]
    try:
        return from_arrow_type(decoders[name].type)
    except PySparkException as error:
        raise UsageError(f"Spark has no type for decoded {name}s: {error}", hint="give another schema") from error


def _raw_columns(options: ReadOptions) -> list[str]:
    return [] if options.decoding is None else options.decoding.raw_columns


def _expected(name: str, options: ReadOptions) -> DataType | None:
    if options.summary:
        return SUMMARY.get(name)
    if name in _raw_columns(options):
        return MALFORMED_TYPE
    return DAMAGE_TYPE if name == DAMAGE else type_of(name, options) if name in COLUMNS else None


def wanted_of(schema: StructType, options: ReadOptions) -> Wanted:
    """What executors must yield for a schema, Spark's own or a user's."""
    columns = SUMMARY if options.summary else COLUMNS
    for field in schema.fields:
        expected = _expected(field.name, options)
        if expected is None:
            raise UsageError(f"the schema has a column {field.name!r}", hint=f"allowed: {', '.join(columns)}")
        if field.dataType.simpleString() != expected.simpleString():
            raise UsageError(
                f"the schema says {field.dataType.simpleString()} for the column {field.name!r}",
                hint=f"it is {expected.simpleString()}; cast it afterwards",
            )
    if options.include_headers and "headers" not in schema.fieldNames():
        raise UsageError("option includeHeaders=true, and the schema has no column 'headers'", hint="drop one of them")
    verify = options.verify
    if verify is None:
        verify = reads_payload([field.name for field in schema.fields])
    return Wanted(
        to_arrow_schema(schema, timezone="UTC"), verify, options.on_damage, options.starting_us, options.ending_us,
        not options.fail_on_data_loss, options.summary, options.decoding,
    )  # fmt: skip


def reads_payload(names: Sequence[str]) -> bool:
    """Whether a column lies in the payload, so that its bytes are read and can be checked on the way."""
    return not PAYLOAD_COLUMNS.isdisjoint(names) or DAMAGE in names

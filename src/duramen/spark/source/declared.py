"""The options of the source, as data: `options` takes their names from here, the documentation its tables.

`OPTIONS` are those that a read accepts, `REFUSED` those of Spark's Kafka source that cannot mean the same here, each
with what to use instead. Names that begin with ``kafka.`` belong to Kafka's client and are refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from duramen.formats import FORMATS
from duramen.values import KINDS

SAME = ""
CLIENT = "kafka."


class Option(NamedTuple):
    name: str
    meaning: str
    default: str = ""
    kafka: str | None = None
    """How the option differs from that of Kafka's source: `SAME`, or in words. None where Kafka's has none."""


_BY_ROW = "a batch selects rows by their time, and may find none; offsets hold as well"
_DEFAULT = "streams begin at `earliest`, too; partitions that the JSON does not name have the default"
_ALONE = "refused beside another option for the same end"
OPTIONS = (
    Option("path", "a log, a segment file, or with topics a store or directory of logs; wildcards `*`, `?`, `[…]`, "
           "`{…,…}`"),
    Option("paths", "several, as a JSON array: what `load([…])` sets"),
    Option("logFormat", ", ".join(f"`{name}`" for name in FORMATS), "detected"),
    Option("subscribe", "topics, comma-separated", kafka=SAME),
    Option("subscribePattern", "a regular expression for the whole name of a topic", kafka=SAME),
    Option("assign", 'partitions of topics: `{"orders": [0, 2]}`', kafka=SAME),
    Option("partitions", "partitions of the topics: `0,2,4-7`", "all"),
    Option("startingOffsets", "`earliest`, `latest`, an offset, `-N` for the last N, or JSON as in Kafka: "
           '`{"orders": {"0": 23, "1": -2}}` (-2 earliest, -1 latest)', "`earliest`",
           _DEFAULT),
    Option("endingOffsets", "the same, exclusive; not for streams", "`latest`",
           _DEFAULT),
    Option("startingTimestamp", "ISO 8601 or epoch milliseconds, inclusive", "",
           _BY_ROW),
    Option("endingTimestamp", "the same, exclusive; not for streams", "", _BY_ROW),
    Option("startingOffsetsByTimestamp", "first record of a time or later, for each partition: "
           '`{"orders": {"0": 1700000000000}}`', kafka=_ALONE),
    Option("endingOffsetsByTimestamp", "the same, exclusive; `latest` if no record is that late; not for streams",
           kafka=_ALONE),
    Option("startingOffsetsByTimestampStrategy", "if no record is that late: `error` or `latest`",
           "`error`; `latest` with `startingTimestamp`", "`startingTimestamp` has another default"),
    Option("isolation", "`read_committed` hides open and aborted transactions, where the format has them",
           "`read_uncommitted`"),
    Option("schema", "`kafka` for the columns of Kafka's source", "`duramen`"),
    Option("columns", "columns, in this order", "`offset,timestamp,key,value`"),
    Option("includeHeaders", "whether `headers` is one of the columns", "`false`", SAME),
    Option("decode", f"what values become: {', '.join(f'`{kind}`' for kind in KINDS)}; [Values](values.md)", "bytes"),
    Option("decodeKey", "the same for keys", "bytes"),
    Option("valueSchema", "schema of decoded values: text, or `@FILE` on the driver", "the first values decide"),
    Option("keySchema", "the same for keys"),
    Option("registry", "for `confluent`: a directory or URL with schemas"),
    Option("onMalformed", "a value that does not decode: `fail`; `null`; or `raw`, which adds `_malformed`", "`fail`"),
    Option("verify", "whether checksums are compared", "if payloads are read"),
    Option("onDamage", "`fail`, `skip`, `report`", "`fail`"),
    Option("maxBytesPerPartition", "bytes of the log per task, such as `64m`",
           "8 to 64 MiB (64 to 512 without payloads); the JVM: to 256"),
    Option("maxRecordsPerPartition", "offsets per task", "", SAME),
    Option("minPartitions", "minimum number of tasks", "1", SAME),
    Option("maxOffsetsPerTrigger", "offsets of a micro-batch over all partitions", "", SAME),
    Option("maxBytesPerTrigger", "the same in bytes"),
    Option("minOffsetsPerTrigger", "a micro-batch waits for so many offsets, not with `availableNow`", "",
           "`availableNow` does not wait"),
    Option("maxTriggerDelay", "the longest wait since the batch before", "`15m`",
           "refused without `minOffsetsPerTrigger`"),
    Option("failOnDataLoss", "whether missing records fail a read, or are reported", "`true`",
           SAME),
    Option("cursor", "name under which a stream stores its position in the log"),
    Option("summary", "one row per task and log: `topic`, `partition`, `first_offset`, `last_offset`, `records`",
           "`false`"),
    Option("engine", "[who reads](#engines): `python`; `jvm` or `arrow`, which need the jar; or `auto`", "`auto`"),
)  # fmt: skip

_NO_GROUP = "a query joins no consumer group; `cursor` stores its position under a name"
_FILES = "a log is files, and no server is asked"
REFUSED: Mapping[str, str] = {
    "groupIdPrefix": _NO_GROUP,
    "kafka.group.id": _NO_GROUP,
    "kafka.isolation.level": "`isolation` says it",
    "kafka.bootstrap.servers": "`path` names the store",
    "kafkaConsumer.pollTimeoutMs": _FILES,
    "fetchOffset.numRetries": _FILES,
    "fetchOffset.retryIntervalMs": _FILES,
}
"""Options of Kafka's source that are refused, and why or what to use instead."""


def options_list() -> str:
    """The options, as Markdown."""
    rows = [f"- `{one.name}`: {one.meaning}.{one.default and f' Default: {one.default}.'}" for one in OPTIONS]
    rows.insert(3, "- `record_size`, …: options of the format; fixed-slot from another program needs `record_size`.")
    return "\n".join(rows)


def kafka_table() -> str:
    """What becomes of the options of Kafka's source, as Markdown."""
    return "\n".join(["| option of `kafka` | here |", "|---|---|", *_kafka_rows()])


def _kafka_rows() -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for one in OPTIONS:
        if one.kafka is not None:
            reasons.setdefault(one.kafka or "the same", []).append(f"`{one.name}`")
    for name, why in {**REFUSED, f"{CLIENT}*": _FILES}.items():
        reasons.setdefault(f"refused: {why}", []).append(f"`{name}`")
    for why, names in reasons.items():
        yield f"| {', '.join(names)} | {why} |"

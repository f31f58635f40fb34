"""The options that Spark's Kafka source has, too: what each means here, and what is refused in words. No session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import duramen
from duramen.errors import DuramenError, UsageError
from duramen.spark.sink.options import check_columns
from duramen.spark.source.declared import CLIENT, OPTIONS, REFUSED, SAME, kafka_table, options_list
from duramen.spark.source.options import parse_options
from duramen.spark.source.schema import schema_of
from duramen.spark.source.source import DuramenSource
from tests.conftest import DATA
from tests.formats import kafka_logs
from tests.spark.source_logs import FORMATS, START_MS, batch_of, expected, read_here, splits_of, write_log

KAFKA: dict[str, str] = {
    "assign": '{"orders": [0]}', "subscribe": "orders", "subscribePattern": "ord.*", "startingTimestamp": "0",
    "startingOffsetsByTimestamp": '{"orders": {"0": 0}}', "startingOffsets": '{"orders": {"0": 1}}',
    "endingTimestamp": "9", "endingOffsetsByTimestamp": '{"orders": {"0": 9}}', "endingOffsets": "latest",
    "failOnDataLoss": "false", "kafkaConsumer.pollTimeoutMs": "1", "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10", "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "5",
    "maxTriggerDelay": "15m", "minPartitions": "2", "maxRecordsPerPartition": "10", "groupIdPrefix": "x",
    "kafka.group.id": "x", "includeHeaders": "true", "startingOffsetsByTimestampStrategy": "latest",
    "kafka.bootstrap.servers": "host:9092", "kafka.security.protocol": "SSL", "kafka.isolation.level": "x",
}  # fmt: skip
"""Every option that the integration guide of Spark 4 lists for reading, and one of the client, with a value."""
BESIDE = {"maxTriggerDelay": "minOffsetsPerTrigger", "startingOffsetsByTimestampStrategy": "startingTimestamp"}
"""What an option needs beside it."""


@pytest.mark.parametrize("name", KAFKA)
def test_an_option_of_kafka_is_taken_or_refused_with_a_reason(name: str) -> None:
    """And the generated table, which the documentation has, says which."""
    accepted = {option.name: option for option in OPTIONS}
    given = {other: KAFKA[other] for other in (name, BESIDE.get(name)) if other is not None}
    row = next(line for line in kafka_table().splitlines() if f"`{name}`" in line or f"`{CLIENT}*`" in line)
    if name in accepted:
        parse_options({"path": "/x", **given}, streaming=False)
        assert accepted[name].kafka is not None, "the table has to say what becomes of it"
        assert row.endswith("| the same |" if accepted[name].kafka == SAME else f"| {accepted[name].kafka} |")
        return
    assert name in REFUSED or name.startswith(CLIENT)
    assert "| refused: " in row
    with pytest.raises(UsageError, match=f"option {name} is Kafka's and has no meaning here \\(") as caught:
        parse_options({"path": "/x", **given}, streaming=False)
    assert caught.value.hint
    assert REFUSED.get(name, caught.value.hint).replace("`", "") == caught.value.hint


def test_the_tables_are_whole() -> None:
    claimed = {option.name for option in OPTIONS if option.kafka is not None} | set(REFUSED)
    assert claimed <= KAFKA.keys(), "Kafka's source has no such option"
    assert all(f"- `{option.name}`: {option.meaning}." in options_list() for option in OPTIONS)
    page = (Path(__file__).parents[3] / "docs/spark.md").read_text(encoding="utf-8")
    assert options_list() in page
    assert kafka_table() in page


WRONG = [
    ({"schema": "avro"}, "option schema='avro' is not valid (allowed: duramen, kafka)"),
    ({"schema": "kafka", "columns": "offset"}, "options schema and columns are both given (give one of them)"),
    ({"includeHeaders": "yes"}, "option includeHeaders='yes' is not valid (allowed: true, false)"),
    ({"includeHeaders": "true", "columns": "offset"}, "option includeHeaders=true contradicts the option columns"),
    ({"includeHeaders": "false", "columns": "headers"}, "option includeHeaders=false contradicts the option columns"),
    ({"assign": "orders"}, "option assign='orders' is not valid (allowed: JSON such as {\"orders\": [0, 2]})"),
    ({"assign": '{"orders": [-1]}'}, "is not valid (allowed: JSON such as"),
    ({"assign": '{"orders": [0]}', "subscribe": "orders"}, "options subscribe and assign are both given"),
    ({"assign": '{"orders": [0]}', "partitions": "0"}, "options assign and partitions are both given"),
    ({"startingOffsetsByTimestamp": "0"}, "option startingOffsetsByTimestamp='0' is not valid (allowed: JSON such as"),
    ({"startingOffsetsByTimestamp": '{"log": {"0": "soon"}}'}, "is not valid (allowed: JSON such as"),
    (
        {"startingOffsetsByTimestamp": '{"other": {"0": 1}}'},
        "has no time for log/0 (name every partition",
    ),
    ({"endingOffsetsByTimestamp": '{"log": {"1": 1}}'}, "option endingOffsetsByTimestamp has no time for log/0"),
    (
        {"startingOffsetsByTimestamp": '{"log": {"0": 1, "7": 1}}'},
        "startingOffsetsByTimestamp names log/7, which",
    ),
    (
        {"startingOffsetsByTimestamp": "{}", "startingOffsets": "3"},
        "startingOffsets and startingOffsetsByTimestamp",
    ),
    ({"startingOffsetsByTimestamp": "{}", "startingTimestamp": "3"}, "options startingTimestamp and startingOffsetsBy"),
    ({"endingOffsetsByTimestamp": "{}", "endingOffsets": "3"}, "options endingOffsets and endingOffsetsByTimestamp"),
    ({"startingOffsetsByTimestampStrategy": "latest"}, "is given alone (it needs startingOffsetsByTimestamp or"),
    (
        {"startingTimestamp": "0", "startingOffsetsByTimestampStrategy": "first"},
        "is not valid (allowed: error, lat",
    ),
    ({"partitions": "0"}, "option partitions is given alone (it needs subscribe or subscribePattern)"),
    ({"maxTriggerDelay": "1m"}, "option maxTriggerDelay is given alone (it needs minOffsetsPerTrigger)"),
    ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "option maxTriggerDelay='soon' is not valid"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger=9 is more than maxOffsetsPer"),
    ({"maxRecordsPerPartition": "0"}, "option maxRecordsPerPartition='0' is not valid (allowed: a number from 1)"),
    ({"paths": '["/x"]'}, "options path and paths are both given"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: None)
def test_a_wrong_value_or_combination_is_refused_in_words(
    shared_log: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(DuramenError) as caught:
        read_here(shared_log, **options)
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def shared_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("kafka") / "log", "keratin", 200)


# --- columns


def test_the_schema_of_kafka() -> None:
    """As `KafkaRecordToRowConverter` declares it, in this order, all nullable."""
    plain = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
    )
    schema = schema_of(parse_options({"path": "/x", "schema": "kafka"}, streaming=False))
    assert schema.simpleString() == f"{plain}>"
    assert all(field.nullable for field in schema)
    schema = schema_of(parse_options({"path": "/x", "schema": "kafka", "includeHeaders": "true"}, streaming=False))
    assert schema.simpleString() == f"{plain},headers:array<struct<key:string,value:binary>>>"


@pytest.mark.parametrize(("name", "kind"), [*zip(FORMATS, (-1, 0, 0, 1, -1), strict=True)])
def test_rows_in_the_schema_of_kafka(tmp_path: Path, name: str, kind: int) -> None:
    log = write_log(tmp_path / "log", name, 30)
    rows = read_here(log, schema="kafka", includeHeaders="true").to_pylist()
    wanted = expected(log, ("key", "value", "offset", "timestamp", "headers")).to_pylist()
    assert [list(row) for row in rows[:1]] == [
        ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    ]
    assert rows == [{**row, "topic": "log", "partition": 0, "timestampType": kind} for row in wanted]


KINDS = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def test_partitions_of_a_broker_in_the_schema_of_kafka() -> None:
    """What Kafka's own consumer returned for them, kind of time included."""
    seen = set()
    for path in kafka_logs.PARTITIONS:
        options = kafka_logs.options(path, "read_committed")
        rows = read_here(path, schema="kafka", **options).select(["offset", "timestampType"]).to_pylist()
        wanted = kafka_logs.truth(path, "read_committed")
        assert rows == [{"offset": row["offset"], "timestampType": KINDS[row["timestamp_type"]]} for row in wanted], (
            path
        )
        seen |= {row["timestampType"] for row in rows}
    assert seen >= {0, 1}


def test_rows_in_the_schema_of_kafka_can_be_written() -> None:
    schema = schema_of(parse_options({"path": "/x", "schema": "kafka", "includeHeaders": "true"}, streaming=False))
    assert check_columns(schema) == ("key", "value", "topic", "partition", "timestamp", "headers")


def test_include_headers(shared_log: Path) -> None:
    assert read_here(shared_log, includeHeaders="true").column_names == [
        "offset", "timestamp", "key", "value", "headers",
    ]  # fmt: skip
    assert read_here(shared_log, includeHeaders="false").column_names[-1] == "value"
    assert read_here(shared_log, columns="headers", includeHeaders="true").column_names == ["headers"]
    source = DuramenSource({"path": str(shared_log), "includeHeaders": "true"})
    with pytest.raises(UsageError, match="includeHeaders=true, and the schema has no column 'headers'"):
        source.reader(DuramenSource({"path": str(shared_log)}).schema())


# --- where a read begins and ends


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    for number in range(3):
        path = root / "topics" / "orders" / "partitions" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_log(path, "rustlog", 50)
    return root


def offsets(path: Path, **options: Any) -> dict[int, list[int]]:
    """The offsets that are read, by partition."""
    found: dict[int, list[int]] = {}
    for row in read_here(path, columns="partition,offset", **options).to_pylist():
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


def test_assign(store: Path) -> None:
    assert offsets(store, assign='{"orders": [0, 2]}').keys() == {0, 2}
    with pytest.raises(DuramenError, match=r"partition orders/7 does not exist \(check option assign; it has 0, 1, 2"):
        offsets(store, assign='{"orders": [0, 7]}')
    with pytest.raises(DuramenError, match="the topic 'other' does not exist"):
        offsets(store, assign='{"other": [0]}')


def by_time(*seconds: float | str) -> str:
    times = {str(n): s if isinstance(s, str) else START_MS + int(s * 1000) for n, s in enumerate(seconds)}
    return json.dumps({"orders": times})


def test_offsets_by_timestamp(store: Path) -> None:
    found = offsets(store, subscribe="orders", startingOffsetsByTimestamp=by_time(40, 48.5, "2023-11-14T22:14:09Z"))
    assert found == {0: list(range(40, 50)), 1: [49], 2: [49]}
    found = offsets(
        store,
        subscribe="orders",
        startingOffsetsByTimestamp=by_time(40, 40, 40),
        endingOffsetsByTimestamp=by_time(42, 1, 99),
    )
    assert found == {0: [40, 41], 2: list(range(40, 50))}, "an end after every record is the end of the log"


def test_no_record_is_that_late(store: Path) -> None:
    late = {"subscribe": "orders", "startingOffsetsByTimestamp": by_time(0, 10, 99)}
    with pytest.raises(UsageError, match=r"orders/2 has no record of that time or later \(startingOffsetsByTime"):
        offsets(store, **late)
    assert offsets(store, startingOffsetsByTimestampStrategy="latest", **late).keys() == {0, 1}
    late = {"subscribe": "orders", "startingTimestamp": str(START_MS + 99_000)}
    assert offsets(store, **late) == {}
    with pytest.raises(UsageError, match="option startingTimestamp: orders/0 has no record of that time or later"):
        offsets(store, startingOffsetsByTimestampStrategy="error", **late)


def test_times_that_go_back_are_looked_up_as_kafka_does() -> None:
    """The first record of that time or later, and everything after it, whatever its time."""
    log = DATA / "osiris" / "plain"
    with duramen.open(log) as opened:
        times = [record.timestamp for record in opened.scan()]
        when = times[len(times) // 2]
        assert when is not None
        first = opened.offset_at(when)
    given = json.dumps({"plain": {"0": when.isoformat()}})
    found = offsets(log, startingOffsetsByTimestamp=given)[0]
    assert found[0] >= first
    assert found == [offset for offset in offsets(log)[0] if offset >= first]


# --- tasks


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("most", [7, 64, 1000])
def test_max_records_per_partition(tmp_path: Path, name: str, most: int) -> None:
    """No task has more, each row comes once, and no byte is read by two tasks. A chunk is never divided."""
    log = write_log(tmp_path / "log", name, 400, segment_bytes=8192)
    splits = splits_of(log, maxRecordsPerPartition=most, startingOffsets=3)
    counts = [read_here(log, [split]).num_rows for split in splits]
    assert max(counts) <= (max(most, 50) if name == "osiris" else most)
    found = read_here(log, splits, columns="offset").column("offset").to_pylist()
    assert found == list(range(3, 400))
    ends: dict[str, int] = {}
    for piece in (piece for split in splits for piece in split.pieces):
        begin = 0 if piece.start is None else piece.start.position
        assert begin >= ends.get(piece.path, 0)
        ends[piece.path] = piece.end_position
    if most == 64 and name != "osiris":
        assert len(splits) <= 20, "neighbours still share a task"


def test_damage_is_reported_once_however_many_tasks(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 300, segment_bytes=1 << 20)
    segment = Path(duramen.open(log).segments[0].path)
    segment.write_bytes(segment.read_bytes().replace(b"value 150.", b"value 15O."))
    table = read_here(log, columns="offset", onDamage="report", maxRecordsPerPartition=10, verify="true")
    damaged = [row for row in table.to_pylist() if row["_damage"] is not None]
    assert [row["offset"] for row in damaged if row["_damage"]["first_offset"] == 150] == [150]
    assert len(table) - len(damaged) == 299


# --- triggers


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def grow(path: Path, count: int) -> None:
    with duramen.open(path, "a") as log:
        log.append_batch(batch_of(log.format, log.next_offset, count), durability="write")


def test_min_offsets_per_trigger(tmp_path: Path) -> None:
    """The first batch does not wait; later ones wait for enough records, or for the delay since the batch before."""
    log = write_log(tmp_path / "log", "keratin", 5)
    source = DuramenSource({"path": str(log), "minOffsetsPerTrigger": "20", "maxTriggerDelay": "60s"})
    reader: Any = source.streamReader(source.schema())
    reader._clock = clock = Clock()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(20)

    def step(start: Any) -> Any:
        return reader.latestOffset(start, limit)

    first = step(reader.initialOffset())
    assert first["log"]["0"] == 5
    assert step(first) is first, "nothing is new"
    grow(log, 19)
    clock.now += 59
    assert step(first) is first
    assert reader.latestOffset(first, ReadAllAvailable())["log"]["0"] == 24, "a single trigger takes everything"
    grow(log, 1)
    second = step(first)
    assert second["log"]["0"] == 25
    grow(log, 3)
    assert step(second) is second
    clock.now += 60
    third = step(second)
    assert third["log"]["0"] == 28
    clock.now += 1000
    assert step(third) is third
    grow(log, 1)
    assert step(third)["log"]["0"] == 29, "the batch before was long ago"


def test_min_and_max_offsets_per_trigger(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    options = {"path": str(log), "minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "45"}
    source = DuramenSource(options)
    reader: Any = source.streamReader(source.schema())
    reader._clock = Clock()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(45)
    at = reader.initialOffset()
    for end in (45, 90):
        at = reader.latestOffset(at, limit)
        assert at["log"]["0"] == end
    assert reader.latestOffset(at, limit) is at, "10 are less than 20"
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(at, limit)["log"]["0"] == 100, "a query that ends leaves nothing"

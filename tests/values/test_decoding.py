"""Decoding in the readers of logs and topics: one set of arguments, one behaviour."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
import duramen.aio
from duramen import MalformedError, MalformedValue, UsageError, decoder
from duramen.values import decoded_json, python_values
from tests.cli.running import Run
from tests.values import amqp_messages as amqp

HELLO = amqp.section(0x74, amqp.map_of([(amqp.text("n"), b"\x50\x05")])) + amqp.data(b"hello")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A message, one that is none, a tombstone, a message."""
    with duramen.open(tmp_path / "log", "a", format="kafka") as log:
        log.append(HELLO, key=b"a")
        log.append(b"junk", key=b"\xff")
        log.append(None, key=b"c")
        log.append(amqp.data(b"bye"))
    return str(tmp_path / "log")


def test_scan_read_batches_and_table_agree(path: str) -> None:
    with duramen.open(path) as log:
        scanned = [record.value for record in log.scan(decode="amqp", on_malformed="null")]
        assert scanned[0]["application_properties"] == {"n": {"type": "ubyte", "text": "5"}}
        assert scanned[1:3] == [None, None]
        assert [log.read(offset, decode="amqp", on_malformed="null").value for offset in range(4)] == scanned
        table = log.table(decode="amqp", on_malformed="null", columns=["value"])
        assert table.column_names == ["value"]
        assert [each and each["body"] for each in table["value"].to_pylist()] == [
            each and each["body"] for each in scanned
        ]
        batch = next(log.batches(decode="amqp", on_malformed="null"))
        assert batch.schema.names == ["offset", "timestamp", "key", "value", "headers"]


def test_fail_names_the_record(path: str) -> None:
    with duramen.open(path) as log:
        with pytest.raises(MalformedError, match="not a section") as caught:
            list(log.scan(decode="amqp"))
        assert (caught.value.offset, caught.value.path) == (1, path)
        with pytest.raises(MalformedError, match="offset 1"):
            log.read(1, decode="amqp")


def test_raw_keeps_reason_and_bytes(path: str) -> None:
    with duramen.open(path) as log:
        values = [record.value for record in log.scan(decode="amqp", on_malformed="raw")]
        assert values[1] == MalformedValue("byte 0: not a section of a message", b"junk")
        table = log.table(decode="amqp", decode_key="utf8", on_malformed="raw")
        assert table.column_names[-2:] == ["_malformed", "_malformed_key"]
        assert [each and each["bytes"] for each in table["_malformed"].to_pylist()] == [None, b"junk", None, None]
        assert [each and each["bytes"] for each in table["_malformed_key"].to_pylist()] == [None, b"\xff", None, None]
        assert table["key"].to_pylist() == ["a", None, "c", None]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"decode": "amq"}, "decode must be"), ({"decode": 5}, "decode must be"),
        ({"decode": "amqp", "on_malformed": "skip"}, "on_malformed must be"),
        ({"on_malformed": "raw"}, "only with decode"), ({"registry": "x"}, "only with decode"),
        ({"value_schema": "a int"}, "without decode"), ({"key_schema": "a int"}, "without decode_key"),
        ({"decode": "utf8", "value_schema": "a int"}, "no schema"),
        ({"decode": "amqp", "value_schema": "a int"}, "a list of their fields"),
        ({"decode": "amqp", "columns": ["offset"]}, "not among the columns"),
        ({"decode_key": "utf8", "columns": ["value"]}, "not among the columns"),
    ],
)  # fmt: skip
def test_wrong_arguments(path: str, options: dict[str, Any], why: str) -> None:
    with duramen.open(path) as log:
        with pytest.raises(UsageError, match=why):
            log.batches(**options)
        with pytest.raises(UsageError, match=why):
            log.table(**options)


def test_a_misspelt_argument(path: str) -> None:
    with duramen.open(path) as log, pytest.raises(TypeError, match="decod"):
        log.scan(decod="amqp")  # type: ignore[call-arg]


def test_a_decoder_serves_as_argument(path: str) -> None:
    made = pickle.loads(pickle.dumps(duramen.decoder("amqp", on_malformed="null")))
    with duramen.open(path) as log:
        assert [each.value is None for each in log.scan(decode=made)] == [False, True, True, False]
        assert isinstance(log.read(1, decode=made, on_malformed="raw").value, MalformedValue)


def test_an_empty_log(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        assert list(log.scan(decode="json")) == []
        assert log.table(decode="json").num_rows == 0
        assert log.table(decode="amqp", on_malformed="raw").column_names[-1] == "_malformed"


def test_a_log_of_nulls(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="kafka") as log:
        log.append_batch(pa.table({"key": [b"a", b"b"], "value": pa.array([None, None], pa.binary())}))
        for kind in ("amqp", "json", "utf8"):
            assert [record.value for record in log.scan(decode=kind)] == [None, None]
            assert [record.key for record in log.scan(decode=kind, decode_key="utf8")] == ["a", "b"]


def test_one_schema_for_all_batches_of_a_read(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", segment_max_bytes=4096) as log:
        log.append_batch([b'{"n": %d}' % number for number in range(990)])
        log.append(b'{"n": 1, "m": 2}')
        log.append_batch([b'{"n": %d}' % number for number in range(9)])
        assert log.read(990, decode="json").value == {"n": 1, "m": 2}
        assert log.table(decode="json")["value"].to_pylist()[990] == {"n": 1, "m": 2}
        log.append(b'{"n": 1, "late": 2}')
        with pytest.raises(MalformedError, match="'late'") as caught:
            log.table(decode="json")
        assert caught.value.offset == 1000
        assert log.table(decode="json", value_schema="n int, late int")["value"].to_pylist()[-1] == {"n": 1, "late": 2}


def test_records_before_a_malformed_one_are_read(tmp_path: Path, call: Run) -> None:
    path = tmp_path / "log"
    with duramen.open(path, "a", format="kafka") as log:
        log.append_batch([(b"k%d" % number, b'{"n": %d}' % number) for number in range(5)])
        log.append_batch([(b"\xff", b'{"n": 5}'), (b"k6", b"?"), (b"k7", b'{"n": 7}')])
        for options, last in (({}, 5), ({"decode_key": "utf8"}, 4)):
            found = []
            with pytest.raises(MalformedError, match=r"the (value|key) is not") as caught:
                found += (record.offset for record in log.scan(decode="json", **options))  # type: ignore[arg-type]
            assert caught.value.offset == last + 1
            assert found == list(range(last + 1))

    async def values() -> list[Any]:
        found: list[Any] = []
        async with duramen.aio.open(str(path)) as log:

            async def read() -> None:
                async for record in log.scan(decode="json"):
                    found.append(record.value["n"])  # noqa: PERF401 - those before the error count

            with pytest.raises(MalformedError, match="offset 6"):
                await read()
        return found

    assert asyncio.run(values()) == list(range(6))
    for form in ("text", "jsonl", "arrow"):
        done = call("cat", str(path), "--decode", "json", "--output", form)
        assert done.fails(1, "offset 6: the value is not json")
        rows = pa.ipc.open_stream(done.out).read_all().num_rows if form == "arrow" else len(done.out.splitlines())
        assert rows == 6


def test_first_values_that_are_null(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="kafka", segment_max_bytes=4096) as log:
        log.append_batch([(b"key %d" % number, None) for number in range(300)])
        log.append_batch([(b"key", b'{"n": 1}')] * 3)
        assert len(log.segments) > 1
        assert [record.value for record in log.scan(299, decode="json")] == [None, *[{"n": 1}] * 3]
        assert log.table(decode="json")["value"].to_pylist()[-1] == {"n": 1}
        assert log.table(0, 9, decode="json").num_rows == 9
        follow = log.scan(0, decode="json", follow=True, max_records=301)
        assert [record.value for record in follow][-1] == {"n": 1}


def test_topics(tmp_path: Path) -> None:
    with duramen.Store(tmp_path) as store:
        topic = store.create("orders", partitions=2)
        for number in range(6):
            topic.append(b'{"n": %d}' % number, partition=number % 2)
        assert sorted(record.value["n"] for record in topic.scan(decode="json")) == list(range(6))
        assert topic.read(1, 0, decode="json").value == {"n": 1}
        batches = list(topic.batches(decode="json", columns=["value"]))
        assert {tuple(batch.schema.names) for batch in batches} == {("partition", "value")}


def test_asyncio(path: str) -> None:
    async def values() -> list[Any]:
        async with duramen.aio.open(path) as log:
            assert (await log.read(0, decode="amqp")).value["body"]["data"] == b"hello"
            return [record.value async for record in log.scan(decode="amqp", on_malformed="null")]

    assert [value and value["body"]["data"] for value in asyncio.run(values())] == [b"hello", None, None, b"bye"]


def test_a_map_whose_keys_repeat_keeps_them() -> None:
    pairs = amqp.map_of([(amqp.text("n"), b"\x50\x01"), (amqp.text("n"), b"\x50\x02")])
    values = pa.array([amqp.section(0x74, pairs) + amqp.data(b"b")], pa.binary())
    found = python_values(decoder("amqp", "application_properties").decode(pa.array([0]), values)[0])
    ubytes = [{"type": "ubyte", "text": text} for text in "12"]
    assert found == [{"application_properties": [["n", ubytes[0]], ["n", ubytes[1]]]}]
    assert decoded_json(found[0]).count('"n"') == 2
    by_list = pa.array([[([1], 2)]], pa.map_(pa.list_(pa.int64()), pa.int64()))
    assert python_values(by_list) == [[[[1], 2]]]

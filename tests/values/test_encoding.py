"""Typed tables as values of bytes, and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen import UsageError, encoder
from tests.values import protobufs
from tests.values.test_codecs import EXPECTED, SCHEMA

DDL = "id bigint, name string, tags array<string>, part struct<n: double>, at timestamp"
ROWS = [
    {"id": 1, "name": "größe", "tags": ["a", "b"], "part": {"n": 1.5}, "at": datetime(2024, 1, 31, 12, tzinfo=UTC)},
    {"id": None, "name": None, "tags": [], "part": None, "at": None},
]
AVRO = {
    "type": "record", "name": "o", "fields": [
        {"name": "id", "type": ["null", "long"]}, {"name": "name", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "part", "type": ["null", {
            "type": "record", "name": "p", "fields": [{"name": "n", "type": "double"}]}]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}  # fmt: skip


def typed() -> pa.Table:
    kind = duramen.decoder("json", DDL).type
    return pa.table({"value": pa.array([*ROWS, None], kind), "key": [b"a", b"b", b"c"]})


@pytest.mark.parametrize(
    ("kind", "decode", "encode"), [("json", DDL, None), ("msgpack", DDL, None), ("avro", AVRO, AVRO)]
)
def test_round_trip(kind: str, decode: Any, encode: Any, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="kafka") as log:
        log.append_batch(typed(), encode=kind, value_schema=encode)
        assert [record.value for record in log.scan(decode=kind, value_schema=decode)] == [*ROWS, None]
        assert [record.key for record in log.scan()] == [b"a", b"b", b"c"]
        again = log.table(decode=kind, value_schema=decode)
        log.append_batch(again.select(["key", "value"]), encode=kind, value_schema=encode)
        values = [record.value for record in log.scan()]
        assert values[:3] == values[3:]


def test_columns_are_the_fields_of_values(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        log.append_batch(pa.table({"id": [1, 2], "key": [b"a", b"b"], "wood": ["oak", None]}), encode="json")
        assert [record.value for record in log.scan()] == [b'{"id":1,"wood":"oak"}', b'{"id":2,"wood":null}']
        log.append_batch(pa.table({"id": pa.array([], pa.int64())}), encode="json")
        assert log.next_offset == 2


def test_protobuf_round_trip(tmp_path: Path) -> None:
    kind = protobufs.order_class()
    with duramen.open(tmp_path / "log", "a") as log:
        inner = protobufs.order(7)
        inner.self.id = 5
        log.append_batch([protobufs.order(7).SerializeToString(), inner.SerializeToString()])
        table = log.table(decode="protobuf", value_schema=kind, columns=["value"])
        log.append_batch(table, encode="protobuf", value_schema=kind)
        found = [record.value for record in log.scan(decode="protobuf", value_schema=kind)]
    assert found[0] == found[2] == {**EXPECTED, "counts": {"x": 3}}
    assert found[1] == found[3]
    assert json.loads(found[3]["self"])["id"] == "5"


def test_amqp_and_text(tmp_path: Path) -> None:
    bodies = [b"", b"x" * 300, None, b"\xff"]
    with duramen.open(tmp_path / "log", "a", format="kafka") as log:
        log.append_batch(pa.table({"value": pa.array(bodies, pa.binary()), "key": [b"k"] * 4}), encode="amqp")
        table = log.table(decode="amqp", columns=["value"])
        assert [each and each["body"]["data"] for each in table["value"].to_pylist()] == bodies
        log.append_batch(pa.table({"value": table["value"], "key": [b"k"] * 4}), encode="amqp")
        log.append_batch(pa.table({"value": ["ä", "b"]}), encode="utf8")
        values = [record.value for record in log.scan()]
    assert values[:4] == values[4:8]
    assert values[8:] == ["ä".encode(), b"b"]


twice = pa.table({"m": pa.array([[("a", 1)], [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))})


def avro_of(kind: str) -> dict[str, Any]:
    schema = {"type": "record", "name": "o", "fields": [{"name": "a", "type": kind}]}
    return {"encode": "avro", "value_schema": schema}


@pytest.mark.parametrize(
    ("table", "options", "why"),
    [
        (pa.table({"value": [1]}), {"encode": "json"}, "values are structs"),
        (pa.table({"key": [b"a"]}), {"encode": "json"}, "no column holds values"),
        (pa.table({"value": [{"a": 1}], "b": [1]}), {"encode": "json"}, "beside the column 'value'"),
        (pa.table({"a": [b"\xff"]}), {"encode": "json"}, "row 0 cannot be encoded as json: JSON has no bytes"),
        (pa.table({"a": [1.0, float("nan")]}), {"encode": "json"}, "row 1 cannot be encoded"),
        (pa.table({"a": ["x"]}), {"encode": "avro", "value_schema": AVRO}, "row 0 cannot be encoded as avro"),
        (pa.table({"a": [1]}), {"encode": "avro"}, "need a schema"),
        (pa.table({"a": [1]}), {"encode": "avro", "value_schema": {"type": "wat"}}, "cannot be used"),
        (pa.table({"a": [1]}), {"encode": "json", "value_schema": SCHEMA}, "without a schema"),
        (pa.table({"a": [1]}), {"encode": "jsn"}, "encode must be"),
        (pa.table({"a": [1]}), {"value_schema": "a int"}, "without encode"),
        ([b"a"], {"encode": "json"}, "takes a RecordBatch or Table"),
        (pa.table({"value": [{"subject": "s", "body": {"data": b"a"}}]}), {"encode": "amqp"},
         "'subject' is no section"),
        (pa.table({"value": [1]}), {"encode": "amqp"}, "is no body"),
        (pa.table({"value": [1]}), {"encode": "utf8"}, "is no text"),
        (twice, {"encode": "json"}, "row 1 cannot be encoded as json: a map has a key twice"),
        (twice, {"encode": "msgpack"}, "row 1 cannot be encoded as msgpack: a map has a key twice"),
        (pa.table({"a": pa.array([0, -(2**63)], pa.timestamp("us"))}), {"encode": "json"}, "row 1 cannot .* range"),
        (pa.table({"a": [1, 2**31]}), avro_of("int"), "row 1 cannot be encoded as avro: o.a is <2147483648>"),
        (pa.table({"a": [1.5]}), avro_of("long"), "expected long"),
        (pa.table({"a": [True]}), avro_of("int"), "expected int"),
        (pa.table({"a": ["false"]}), avro_of("boolean"), "expected boolean"),
    ],
)  # fmt: skip
def test_what_cannot_be_encoded_stores_nothing(table: Any, options: Any, why: str, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        with pytest.raises(UsageError, match=why):
            log.append_batch(table, **options)
        assert log.next_offset == 0


def test_protobuf_refuses_what_the_message_lacks() -> None:
    made = encoder("protobuf", protobufs.order_class())
    for row in ({"wat": 1}, {"id": "x"}, {"wood": "PINE"}, {"tags": 5}, {"id": Decimal("1.5")}):
        with pytest.raises(UsageError, match="row 0 cannot be encoded"):
            made.encode(pa.table({"value": [row]}))

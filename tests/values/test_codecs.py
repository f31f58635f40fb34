"""Avro, Protobuf and MessagePack as columns, with values of the libraries that people write them with."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.errors import DuramenError, MalformedError, UsageError
from duramen.values import decoder, encoder, python_values
from duramen.values.protobuf import codec_of
from tests.kernel.twins import edited
from tests.values import protobufs
from tests.values.test_json import rows

SCHEMA = {
    "type": "record", "name": "order", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"},
        {"name": "wood", "type": ["null", {"type": "enum", "name": "wood", "symbols": ["oak", "ash"]}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "hash", "type": {"type": "fixed", "name": "md5", "size": 2}},
        {"name": "other", "type": ["null", "shop.wood"], "default": None},
    ],
}  # fmt: skip
ORDER = {
    "id": 7, "wood": "oak", "price": Decimal("12.50"), "at": datetime(2024, 1, 31, 12, tzinfo=UTC),
    "day": date(2024, 1, 31), "key": UUID(int=5), "tags": ["a"], "counts": {"x": 1}, "hash": b"ab", "other": "ash",
}  # fmt: skip


def avro(schema: Any, tree: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), tree)
    return out.getvalue()


def test_avro() -> None:
    made = decoder("avro", SCHEMA, on_malformed="raw")
    value = avro(SCHEMA, ORDER)
    found = rows(made, value, b"", value[:-3], value + b"x", b"\xff" * 20, None, value)
    expected = {**ORDER, "key": str(UUID(int=5)), "counts": [("x", 1)]}
    assert (found[0], found[5], found[6]) == (expected, None, expected)
    assert all(isinstance(reason, str) for reason in found[1:5])


def test_avro_schemas_by_file_and_text(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(SCHEMA))
    assert decoder("avro", f"@{tmp_path}/order.avsc").type == decoder("avro", json.dumps(SCHEMA)).type


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (None, "need their schema"), ("{", "cannot be used"), ('"long"', "not a record"), ({"type": "record"}, "name"),
        ({"type": "record", "name": "a", "fields": [{"name": "b", "type": ["int", "string"]}]}, "several types"),
        ({"type": "record", "name": "a", "fields": [{"name": "b", "type": "a"}]}, "recursive"),
        ({"type": "record", "name": "a", "fields": [{"name": "b", "type": {"type": "array", "items": "null"}}]},
         "no bytes"),
        ({"type": "record", "name": "a", "fields": [{"name": "b", "type": "wat"}]}, "not known"),
    ],
)  # fmt: skip
def test_avro_schemas_that_cannot_be_used(schema: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        decoder("avro", schema)


def test_avro_types_by_their_names() -> None:
    """Also as items of arrays, and types that are shown as another one."""
    item = {"type": "record", "name": "item", "fields": [{"name": "n", "type": "int"}]}
    money = {"type": "fixed", "name": "money", "size": 4, "logicalType": "decimal", "precision": 8, "scale": 2}
    types = [item, {"type": "array", "items": "item"}, money, "money", {"type": "map", "values": "item"}]
    schema = {
        "type": "record",
        "name": "o",
        "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(types)],
    }
    tree = {"f0": {"n": 1}, "f1": [{"n": 2}], "f2": Decimal("1.25"), "f3": Decimal("-1.25"), "f4": {"k": {"n": 3}}}
    found = rows(decoder("avro", schema), avro(schema, tree))
    assert found == [{**tree, "f4": [("k", {"n": 3})]}]


def test_avro_reasons_name_what_is_wrong() -> None:
    """The same for the same bytes, without an address of memory."""
    schema = {"type": "record", "name": "o", "fields": [
        {"name": "b", "type": "boolean"}, {"name": "u", "type": ["null", "long"]}, {"name": "f", "type": "float"},
    ]}  # fmt: skip
    found = rows(decoder("avro", schema, on_malformed="raw"), b"", b"\1", b"\1\x08", b"\1\0ab", b"\1\0abcde")
    assert found == [
        "cut short after 0 bytes", "cut short after 1 bytes", "the index of a union or enum is out of range",
        "cut short after 4 bytes", "1 bytes are left over",
    ]  # fmt: skip
    with pytest.raises(MalformedError, match=r"offset 0: the value is not avro \(o\): cut short"):
        decoder("avro", schema).decode(pa.array([0]), pa.array([b""], pa.binary()))


def test_schemas_that_grow_without_bound() -> None:
    """Short ones that describe an exponential number of fields."""
    names = [f"t{level}" for level in range(12)]
    tree: Any = "int"
    for level, name in enumerate(names):
        fields = [
            {"name": "a", "type": tree},
            *({"name": n, "type": names[level - 1] if level else "int"} for n in "bcde"),
        ]
        tree = {"type": "record", "name": name, "fields": fields}
    with pytest.raises(UsageError, match="more than 10,000 fields"):
        decoder("avro", tree)
    with pytest.raises(UsageError, match="more than 10,000 fields"):
        codec_of(protobufs.nested_set(messages=12, fields=5), "deep.M0")
    with pytest.raises(UsageError, match="levels deep"):
        codec_of(protobufs.nested_set(messages=60, fields=1), "deep.M0")


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_damaged_avro_decodes_or_has_a_reason(data: st.DataObject) -> None:
    rows(decoder("avro", SCHEMA, on_malformed="raw"), data.draw(edited(avro(SCHEMA, ORDER))), data.draw(st.binary()))


def test_msgpack() -> None:
    made = decoder(
        "msgpack", "id bigint, raw binary, tags array<string>, m map<string,int>, at timestamp", on_malformed="raw"
    )
    tree = {"id": 1, "raw": b"\xff", "tags": ["a"], "m": {"k": 1}, "at": datetime(2024, 1, 1, tzinfo=UTC)}
    packed = msgpack.packb(tree, datetime=True)
    wrong = [msgpack.packb(tree) for tree in ([1], {"id": "x"}, {"id": 2**64 - 1})]
    wrong += [b"", packed + b"x", b"\xdd\xff\xff\xff\xff", b"\x91" * 5000, b"\xc1", b"\x81\xa2id\xa1\xff"]
    found = rows(made, packed, *wrong)
    assert found[0] == {**tree, "m": [("k", 1)]}
    assert all(isinstance(reason, str) for reason in found[1:])


def test_msgpack_without_a_schema() -> None:
    values = [msgpack.packb({"id": 1, "o": {"x": 1.5}}), b"?", msgpack.packb({"id": 2, "raw": b"\0"})]
    bound = decoder("msgpack", on_malformed="raw").bind(pa.array(values, pa.binary()))
    assert str(bound.type) == "struct<id: int64, o: struct<x: double>, raw: binary>"
    assert "'late'" in rows(bound, msgpack.packb({"late": 1}))[0]


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_any_msgpack_decodes_or_has_a_reason(data: st.DataObject) -> None:
    packed = msgpack.packb({"id": 1, "o": {"x": [1.5, None]}, "s": "text"})
    rows(decoder("msgpack", "id bigint, o struct<x: array<double>>, s string", on_malformed="raw"),
         data.draw(edited(packed)), data.draw(st.binary()))  # fmt: skip


# --- Protobuf


@pytest.fixture
def descriptors(tmp_path: Path) -> str:
    (tmp_path / "order.desc").write_bytes(protobufs.descriptor_set())
    return str(tmp_path / "order.desc")


EXPECTED = {
    "id": 7, "name": "order 7", "raw": b"\xff", "big": Decimal(2**64 - 1), "tags": ["a", "b"], "wood": "OAK",
    "at": datetime(2023, 11, 14, 22, 13, 20, 123, tzinfo=UTC), "part": {"n": 7}, "counts": [("x", 3)], "self": None,
    "ratio": 0.5, "is_open": True,
}  # fmt: skip


def test_protobuf_by_descriptor_set(descriptors: str) -> None:
    made = decoder("protobuf", f"{descriptors}#shop.Order", on_malformed="raw")
    found = rows(
        made, protobufs.order(7).SerializeToString(), b"\xff", b"", protobufs.order(7, late="x").SerializeToString()
    )
    assert found[0] == found[3] == EXPECTED  # a field that the descriptor lacks is skipped
    assert isinstance(found[1], str)
    assert (found[2]["id"], found[2]["part"], found[2]["wood"]) == (0, None, "NONE")


def test_protobuf_by_class_and_module(monkeypatch: pytest.MonkeyPatch) -> None:
    value = protobufs.order(7).SerializeToString()
    assert rows(decoder("protobuf", protobufs.order_class()), value) == [EXPECTED]
    module = type(sys)("orders_pb2")
    module.Order = protobufs.order_class()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "orders_pb2", module)
    assert rows(decoder("protobuf", "orders_pb2#Order"), value) == [EXPECTED]


def test_a_message_inside_of_itself_is_json(descriptors: str) -> None:
    outer = protobufs.order(1)
    inner = outer
    for number in range(50):
        inner = inner.self
        inner.id = number
    found = rows(decoder("protobuf", f"{descriptors}#shop.Order"), outer.SerializeToString())[0]
    assert json.loads(found["self"])["self"]["self"]["id"] == "2"


@pytest.mark.parametrize(
    "spec", [None, 5, "", "order", "order#", "#x", "missing_pb2#Order", "json#Order", "{}#shop.No"]
)
def test_protobuf_schemas_that_cannot_be_used(descriptors: str, spec: Any) -> None:
    with pytest.raises(UsageError):
        decoder("protobuf", spec.format(descriptors) if isinstance(spec, str) else spec)


def test_times_out_of_range_and_unknown_enums(descriptors: str) -> None:
    made = decoder("protobuf", f"{descriptors}#shop.Order", on_malformed="raw")
    odd = protobufs.order(1)
    odd.at.seconds = 2**62
    assert "out of range" in rows(made, odd.SerializeToString())[0]
    odd = protobufs.order(1)
    odd.wood = 99
    assert rows(made, odd.SerializeToString())[0]["wood"] == "99"


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_damaged_protobuf_decodes_or_has_a_reason(data: st.DataObject) -> None:
    made = decoder("protobuf", protobufs.order_class(), on_malformed="raw")
    rows(made, data.draw(edited(protobufs.order(7).SerializeToString())), data.draw(st.binary()))


# --- extras


@pytest.mark.parametrize(("kind", "module", "schema"), [
    ("avro", "fastavro", SCHEMA), ("protobuf", "google.protobuf", "a.desc#b"), ("msgpack", "msgpack", None),
])  # fmt: skip
def test_a_missing_package_names_the_extra(
    kind: str, module: str, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DuramenError, match=f"{module.split('.', maxsplit=1)[0]}.*duramen.{kind}"):
        decoder(kind, schema)
    with pytest.raises(DuramenError, match=f"duramen.{kind}"):
        encoder(kind, schema)


def test_python_values_of_maps() -> None:
    kind = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int32()))]))
    assert python_values(pa.array([[{"m": [("a", 1)]}, {"m": None}], None], kind)) == [
        [{"m": {"a": 1}}, {"m": None}],
        None,
    ]

"""AMQP 1.0 as columns: every type, every section, and values that are no messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen import kernel
from duramen.errors import CorruptionError
from duramen.formats.arrow import places_of
from duramen.values import Decoded, decoder, python_values
from tests.kernel.twins import edited, flips
from tests.values import amqp_messages as amqp

AMQP: Any = decoder("amqp", on_malformed="raw").codec


def decode(*values: bytes) -> Decoded:
    decoded: Decoded = AMQP.decode(pa.array(values, pa.binary()))
    decoded.array.validate(full=True)
    assert decoded.array.type == AMQP.type
    assert {row for row in range(len(values)) if not decoded.array[row].is_valid} == set(decoded.malformed)
    return decoded


def message(value: bytes) -> dict[str, Any]:
    decoded = decode(value)
    assert not decoded.malformed
    found: dict[str, Any] = python_values(decoded.array)[0]
    return found


@pytest.mark.parametrize("name", amqp.SCALARS)
def test_each_type_is_shown_by_its_name_and_as_text(name: str) -> None:
    encoded, text = amqp.SCALARS[name]
    shown = message(amqp.section(0x77, encoded))["body"]["value"]
    assert (shown["text"] or "null") == text
    assert name.rstrip("0").removeprefix("small") in (shown["type"], "true", "false")


@pytest.mark.parametrize("name", amqp.SCALARS)
def test_each_type_among_others_is_shown_the_same(name: str) -> None:
    """Rows of one type take another way than rows of several."""
    encoded, _ = amqp.SCALARS[name]
    values = [amqp.section(0x77, each) for each, _ in amqp.SCALARS.values()]
    row = list(amqp.SCALARS).index(name)
    assert python_values(decode(*values).array)[row] == message(amqp.section(0x77, encoded))


def test_all_sections() -> None:
    found = message(
        amqp.section(0x70, amqp.list_of([b"\x41", b"\x50\x07", b"\x52\x09", b"\x42", b"\x43"]))
        + amqp.section(0x71, amqp.map_of([(amqp.symbol("d"), b"\x41")]))
        + amqp.section(0x72, amqp.map_of([(amqp.symbol("x-opt"), amqp.text("a")), (b"\x53\x07", b"\x40")]))
        + amqp.section(0x73, amqp.list_of([
            amqp.fixed(0x80, "Q", 2**64 - 1), amqp.binary(b"guest"), amqp.text("to"), amqp.text("subject"),
            amqp.text("reply"), amqp.SCALARS["uuid"][0], amqp.symbol("text/plain"), amqp.symbol("gzip"),
            amqp.fixed(0x83, "q", 1_700_000_000_000), amqp.fixed(0x83, "q", -1), amqp.text("g"),
            amqp.fixed(0x70, "I", 2**32 - 1), amqp.text("rg"),
        ]))
        + amqp.section(0x74, amqp.map_of([(amqp.text("region"), amqp.text("eu")), (amqp.text("n"), b"\x50\x05")]))
        + amqp.data(b"the body")
        + amqp.section(0x78, amqp.map_of([(amqp.symbol("crc"), b"\x43")]))
    )  # fmt: skip
    assert found == {
        "body": {"data": b"the body", "sequence": None, "value": None},
        "message_id": {"type": "ulong", "text": str(2**64 - 1)},
        "correlation_id": {"type": "uuid", "text": "00010203-0405-0607-0809-0a0b0c0d0e0f"},
        "content_type": "text/plain", "content_encoding": "gzip", "subject": "subject", "to": "to",
        "reply_to": "reply", "user_id": b"guest",
        "creation_time": datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
        "absolute_expiry_time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "group_id": "g", "group_sequence": 2**32 - 1, "reply_to_group_id": "rg",
        "application_properties": {"region": {"type": "string", "text": "eu"}, "n": {"type": "ubyte", "text": "5"}},
        "annotations": {"x-opt": {"type": "string", "text": "a"}, "7": {"type": "null", "text": None}},
        "delivery_annotations": {"d": {"type": "boolean", "text": "true"}},
        "footer": {"crc": {"type": "uint", "text": "0"}},
        "header": {"durable": True, "priority": 7, "ttl": 9, "first_acquirer": False, "delivery_count": 0},
    }  # fmt: skip


def test_bodies_of_several_sections() -> None:
    one, two = amqp.data(b"a"), amqp.data(b"b" * 300) + amqp.data(b"") + amqp.data(b"c")
    sequences = amqp.section(0x76, amqp.list_of([b"\x41"])) + amqp.section(0x76, amqp.list_of([amqp.text("x")]))
    bodies = [found["body"] for found in python_values(decode(one, two, sequences, one).array)]
    assert [body["data"] for body in bodies] == [b"a", b"b" * 300 + b"c", None, b"a"]
    assert bodies[2]["sequence"] == [{"type": "boolean", "text": "true"}, {"type": "string", "text": "x"}]


def test_what_json_lacks_is_marked() -> None:
    items = [
        amqp.symbol("s"), amqp.binary(b"\xff"), amqp.SCALARS["timestamp"][0], amqp.fixed(0x82, "d", float("nan")),
        amqp.fixed(0x72, "f", 1.1), amqp.map_of([(b"\x43", b"\x41")]), amqp.map_of([(amqp.text("$k"), b"\x41")]),
        amqp.array_of(b"\x41", []) + b"", amqp.counted(0xE0, 200, b"\x41"), amqp.array_of(b"\0\x43\x50", [b"\x01"]),
        amqp.array_of(b"\xc0", [b"\x02\x01\x41"]), amqp.fixed(0x83, "q", 2**63 - 1),
    ]  # fmt: skip
    text = message(amqp.section(0x77, amqp.list_of(items)))["body"]["value"]["text"]
    assert json.loads(text) == [
        {"$symbol": "s"}, {"$binary": "/w=="}, {"$timestamp": "2023-11-14T22:13:20.123Z"}, {"$double": "nan"}, 1.1,
        {"$map": [[0, True]]}, {"$map": [["$k", True]]}, {"$array": {"$repeat": [True, 0]}},
        {"$array": {"$repeat": [True, 200]}}, {"$array": [{"$described": [0, 1]}]}, {"$array": [[True]]},
        {"$timestamp": str(2**63 - 1)},
    ]  # fmt: skip


def test_a_huge_count_of_nothing_stays_small() -> None:
    bomb = b"\xf0\0\0\0\x05\xff\xff\xff\xff\x41"
    shown = message(amqp.section(0x77, amqp.list_of([bomb] * 100)))["body"]["value"]["text"]
    assert len(shown) < 5_000


@given(st.lists(amqp.messages(), max_size=5))
@settings(deadline=None)
def test_messages_do_not_depend_on_their_neighbours(values: list[bytes]) -> None:
    together = decode(*values)
    for row, value in enumerate(values):
        alone = decode(value)
        assert python_values(alone.array) == [python_values(together.array)[row]]
        assert alone.malformed.get(0) == together.malformed.get(row)


@given(st.data())
@settings(deadline=None)
def test_damaged_messages_decode_or_have_a_reason(data: st.DataObject) -> None:
    decode(*(data.draw(edited(data.draw(amqp.messages()))) for _ in range(3)))


def test_every_flip_of_a_message_decodes_or_has_a_reason() -> None:
    everything = amqp.list_of([encoded for encoded, _ in amqp.SCALARS.values()])
    whole = (
        amqp.section(0x73, amqp.list_of([amqp.text("id"), amqp.binary(b"u")]))
        + amqp.section(0x74, amqp.map_of([(amqp.text("k"), everything)]))
        + amqp.data(b"body")
    )
    decoded = decode(*(changed for _, changed in flips(whole)))
    assert 0 < len(decoded.malformed) < len(decoded.array)


def test_slices_and_no_values() -> None:
    assert len(decode().array) == 0
    values = pa.array([b"?", amqp.data(b"a"), b"!", amqp.data(b"b")], pa.binary()).slice(1, 3)
    decoded = AMQP.decode(values)
    assert list(decoded.malformed) == [1]
    assert [found and found["body"]["data"] for found in decoded.array.to_pylist()] == [b"a", None, b"b"]


def test_some_of_the_fields() -> None:
    value = amqp.section(0x73, amqp.list_of([amqp.text("id")])) + amqp.data(b"a")
    some = decoder("amqp", "message_id, body", on_malformed="raw")
    found, malformed = some.decode(pa.array([0, 1]), pa.array([value, b"?"], pa.binary()))
    assert found.type.names == ["message_id", "body"]
    assert found.to_pylist()[0]["message_id"] == {"type": "string", "text": "id"}
    assert malformed[1]["reason"].as_py()


def test_absent_fields_take_few_bytes_between_processes() -> None:
    """Where Arrow makes a list or map of nulls, what it holds has buffers, too: the worker of Spark sent them all."""
    values = pa.array([amqp.data(b"x" * 1000)] * 2000, pa.binary())
    column, _ = decoder("amqp").decode(pa.array(range(2000)), values)
    sent = pa.ipc.get_record_batch_size(pa.RecordBatch.from_arrays([column], ["value"]))
    assert sent < values.nbytes + 2000 * 150


def test_bytes_that_change_while_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    message = amqp.section(0x74, amqp.map_of([(amqp.text("key"), amqp.text("value"))]))
    data = bytearray(b"..." + message)
    scan = kernel.scan_amqp

    def then_change(*args: Any) -> None:
        scan(*args)
        data[:] = b"\xff" * len(data)

    monkeypatch.setattr(kernel, "scan_amqp", then_change)
    places = places_of(np.array([3]), np.array([len(message)], np.uint32))
    with pytest.raises(CorruptionError, match="the bytes changed between scan and decode: row 0"):
        decoder("amqp").decode(pa.array([0]), places, data=data)

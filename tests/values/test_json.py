"""JSON as columns: one object per value, whatever stands beside it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.errors import UsageError
from duramen.values import Decoder, decoder
from tests.kernel.twins import edited

DDL = "a bigint, s string, d double, o struct<x: int, l: array<string>>, t timestamp"


def rows(made: Decoder, *values: bytes | None) -> list[Any]:
    """The decoded values; one that does not decode as its reason."""
    offsets = pa.array(range(len(values)), pa.int64())
    found, malformed = made.decode(offsets, pa.array(values, pa.binary()))
    reasons = [None if each is None else each["reason"] for each in malformed.to_pylist()]
    return [reason or value for value, reason in zip(found.to_pylist(), reasons, strict=True)]


def raw(schema: Any = DDL) -> Decoder:
    return decoder("json", schema, on_malformed="raw")


@pytest.mark.parametrize(
    "value",
    [
        b"", b" ", b"null", b"5", b"[1]", b'"s"', b"{", b'{"a":1}{"a":2}', b'{"a":1} null', b'{"a":1}\nnull',
        b'{"a":1},"x":{}', b'{"a":1}}', b'{"a":"x"}', b'{"a":1.5}', b'{"a":1e400}', b'{"d":NaN}', b'{"d":-Infinity}',
        b'{"d":Inf}', b'{"a":1,"a":2}', b'{"s":"\xff"}', b'{"s":"\\ud800"}', b'{"s":5}', b'{"t":"yesterday"}',
        b'{"a":99999999999999999999}', b'{"o":[]}', b"{'a':1}", b'{"a":1,}', b'{"s":"\n"}',
    ],
)  # fmt: skip
def test_malformed_values_beside_sound_ones(value: bytes) -> None:
    """Also where neighbours make up for each other, as an object too many and an empty value do."""
    sound = {"a": 1, "s": None, "d": None, "o": None, "t": None}
    for others in ([b'{"a":1}'], [b'{"a":1}', b""], [b'{"a":1}', b"}"], [b'{"a":1}{"a":1}']):
        found = rows(raw(), *others, value, b'{"a":1}')
        assert found[0] == sound or len(others[0]) > 7
        assert isinstance(found[-2], str), found
        assert found[-1] == sound


def test_values_that_are_unusual_and_sound() -> None:
    blank = {"a": None, "s": None, "d": None, "o": None, "t": None}
    assert rows(raw(), b"{}", b' {"a":1}\n', b'{"s":"} null"}', b'{"zz":[1]}', None, b'{"a":\n1}') == [
        blank, {**blank, "a": 1}, {**blank, "s": "} null"}, blank, None, {**blank, "a": 1},
    ]  # fmt: skip


def test_deep_and_long_values() -> None:
    deep = b'{"zz":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    assert rows(raw("a bigint"), deep, b"{" * 100_000)[1].startswith("Expecting")
    assert rows(raw("a bigint, o map<string,string>"), deep) != [None]


objects = st.dictionaries(
    st.sampled_from("asdot"),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-10, 10), st.floats(allow_nan=False), st.text(max_size=4)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xl"), inner, max_size=2)),
        max_leaves=5,
    ),
    max_size=4,
)


@given(st.lists(objects.map(lambda tree: json.dumps(tree).encode()), min_size=1, max_size=5), st.data())
@settings(deadline=None)
def test_a_value_does_not_depend_on_its_neighbours(values: list[bytes], data: st.DataObject) -> None:
    values = [data.draw(edited(value)) if data.draw(st.booleans()) else value for value in values]
    together = rows(raw(), *values)
    for value, found in zip(values, together, strict=True):
        alone = rows(raw(), value)[0]
        assert (alone == found) or (isinstance(alone, str) and isinstance(found, str)), value


@pytest.mark.parametrize("value", [
    b'{"zz":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"zz":' + b"1" * 5000 + b"}", b'{"zz":"\xff"}', b'{"\xff":1}',
    b'{"zz":"\\ud800"}', b'{"zz":1,"zz":2}', b'{"zz":1e999}', b'{"zz":nul}',
])  # fmt: skip
def test_what_a_schema_leaves_out_does_not_depend_on_neighbours(value: bytes) -> None:
    (alone,) = rows(raw("a bigint"), value)
    for other in (b"?", b'{"a":1.5}', b'{"a":NaN}', b"{}"):
        _, beside, _ = rows(raw("a bigint"), other, value, b'{"a":1}')
        assert type(alone) is type(beside)


@pytest.mark.parametrize("schema", ["t timestamp, f float", "t timestamp, f float, m map<string,string>"])
@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-02:00"])
def test_times_that_no_calendar_shows(schema: str, time: str) -> None:
    sound = b'{"t":"9999-12-31T23:59:59Z","f":1.5}'
    found = rows(raw(schema), sound, b'{"t":"%s"}' % time.encode(), sound)
    assert [type(each) for each in found] == [dict, str, dict]
    assert isinstance(rows(raw("f float"), b'{"f":1e39}')[0], str)


def test_types_that_arrows_reader_lacks() -> None:
    made = raw("m map<string,bigint>, d date, x decimal(5,2)")
    found = rows(made, b'{"m":{"k":1},"d":"2023-01-02","x":1.25}', b'{"m":{"k":"z"}}', b'{"d":"soon"}', b'{"x":12345}')
    assert [type(each) for each in found] == [dict, str, str, str]


def test_without_a_schema_the_first_values_decide() -> None:
    made = raw(None)
    assert not made.is_bound
    bound = made.bind(pa.array([b'{"a":1,"n":null}', b"?", b'{"a":1.5,"l":[{"x":true}],"e":{}}'], pa.binary()))
    assert str(bound.type) == "struct<a: double, n: string, l: list<item: struct<x: bool>>, e: struct<>>"
    found = rows(bound, b'{"a":2}', b'{"late":1}', b'{"l":[{"y":1}]}')
    assert found[0]["a"] == 2.0
    assert "'late'" in found[1]
    assert "'l[].y'" in found[2]


@pytest.mark.parametrize(
    "values", [[b'{"a":1}', b'{"a":"x"}'], [b'{"a":[1]}', b'{"a":1}'], [b'{"a":{"b":1}}', b'{"a":[]}']]
)
def test_first_values_that_disagree_ask_for_a_schema(values: list[bytes]) -> None:
    with pytest.raises(UsageError, match="give a schema"):
        raw(None).bind(pa.array(values, pa.binary()))


def test_too_many_fields_ask_for_a_schema() -> None:
    value = json.dumps({f"f{number}": 1 for number in range(3000)}).encode()
    with pytest.raises(UsageError, match="more than 2000 different fields"):
        raw(None).bind(pa.array([value], pa.binary()))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("", "names no field"), ("a", "'the end' is not known"), ("a whatever", "'whatever' is not known"),
        ("a int, a int", "given twice"), ("a array<int", "expected '>'"), ("a decimal(50,2)", "not possible"),
        ("a int int", "expected ','"), ("a int;", "unexpected ';'"), ("{", "not valid JSON"),
        ('{"type": "string"}', "does not describe an object"), (5, "a schema is text"),
        ('{"type": "object", "properties": {"a": {"$ref": "#"}}}', "recursive"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "levels deep"),
        ({"type": "object", "properties": {name: {"$ref": "#/$defs/9"} for name in "abcd"},
          "$defs": {str(level): {"type": "object", "properties": {name: {"$ref": f"#/$defs/{level - 1}"} if level
                                 else {"type": "string"} for name in "abcd"}} for level in range(10)}},
         "more than 10,000 fields"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_used(schema: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        decoder("json", schema)


def test_schema_of_every_kind() -> None:
    wanted = pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    tree = {
        "type": "object",
        "properties": {"id": {"type": ["integer", "null"]}, "tags": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
        "$defs": {"t": {"anyOf": [{"type": "null"}, {"type": "string"}]}},
    }
    for schema in ("id bigint NOT NULL, tags array<string>", pa.schema(list(wanted)), wanted, tree, json.dumps(tree)):
        assert decoder("json", schema).type == wanted


def test_a_schema_in_a_file(tmp_path: Any) -> None:
    (tmp_path / "schema").write_text("id bigint\n")
    assert decoder("json", f"@{tmp_path}/schema").type == pa.struct([("id", pa.int64())])

"""`duramen cat`: which records, and how they are written."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pytest

import duramen
from duramen.formats import make
from duramen.record import SCHEMA
from tests.cli.running import FORMATS, Logs, Run, flip, segments
from tests.values import amqp_messages as amqp


def offsets(result_lines: list[dict[str, object]]) -> list[object]:
    return [record["offset"] for record in result_lines]


@pytest.mark.parametrize("format", FORMATS)
def test_every_record(call: Run, logs: Logs, format: str) -> None:
    log, options = logs.copy(format), logs.options(format)
    records = call("cat", log, "--json", *options).json_lines
    expected = [offset for offset in range(300) if format != "osiris" or offset != 260]
    assert offsets(records) == expected
    assert all(list(record) == ["offset", "timestamp", "key", "value", "headers"] for record in records)
    assert json.loads(records[51]["value"]) == {"order": 51, "wood": "larch", "boards": 7, "note": "für Sofia"}
    capabilities = make(format).capabilities
    assert (records[0]["timestamp"] is not None) == (capabilities.timestamps is not None)
    assert (records[0]["key"] == "customer-0") == capabilities.key
    assert (records[0]["headers"] == [{"key": "source", "value": "till"}]) == capabilities.headers
    text = call("cat", log, *options).text.splitlines()
    assert text == [record["value"] for record in records]
    assert call("cat", log, "--output", "raw", *options).text == "".join(text)
    table = pa.ipc.open_stream(call("cat", log, "--output", "arrow", *options).out).read_all()
    assert table.schema == SCHEMA
    assert table.column("offset").to_pylist() == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-o", "beginning", "-c", "2"], [0, 1]),
        (["-o", "119", "-c", "3"], [119, 120, 121]),
        (["-o", "-2"], [298, 299]),
        (["-o", "-2", "-c", "1"], [298]),
        (["-o", "-0"], []),
        (["-o", "end"], []),
        (["-o", "300"], []),
        (["-o", "297", "--to", "299"], [297, 298]),
        (["-o", "-4", "--to", "-2"], [296, 297]),
        (["-o", "298", "--to", "end"], [298, 299]),
        (["-c", "0"], []),
        (["-o", "@2023-11-14T22:13:49Z", "-c", "1"], [290]),
        (["-o", "@1700000029000", "-c", "1"], [290]),
        (["-o", "@2023-11-14T22:13:48.5", "--to", "@2023-11-14T22:13:49.001Z", "-c", "1"], [290]),
        (["-o", "@2033-01-01"], []),
    ],
)
def test_from_where_to_where(call: Run, logs: Logs, arguments: list[str], expected: list[int]) -> None:
    result = call("cat", logs.copy("rustlog"), "--json", *arguments)
    assert (result.code, result.err) == (0, "")
    assert offsets(result.json_lines) == expected


def test_an_offset_that_is_not_there_is_said(call: Run, logs: Logs, tmp_path: Path) -> None:
    path = logs.copy("rustlog")
    result = call("cat", path, "-o", "301")
    assert (result.code, result.out) == (0, b"")
    assert result.err == f"note: {path} contains offsets 0 to 299, not 301\n"
    duramen.open(tmp_path / "empty", "a", format="keratin").close()
    assert call("cat", tmp_path / "empty", "-o", "1").err == (
        f"note: {tmp_path / 'empty'} is empty; the next offset is 0, not 1\n"
    )


@pytest.mark.parametrize("count", [1, 39, 40, 41, 79, 80, 178, 179, 180, 299, 300, 5000])
def test_the_last_records_are_counted_not_computed(call: Run, logs: Logs, count: int) -> None:
    """Osiris leaves out the offset of a tracking chunk: 260 here."""
    expected = [offset for offset in range(300) if offset != 260][-count:]
    assert offsets(call("cat", logs.copy("osiris"), "--json", "-o", f"-{count}").json_lines) == expected


def test_the_last_records_of_a_real_stream(call: Run, osiris: Path) -> None:
    truth = [json.loads(line) for line in (osiris / "tracked" / "truth.jsonl").read_text().splitlines()]
    for count in (1, 7, 100, len(truth)):
        records = call("cat", osiris / "tracked", "--json", "--base64", "-o", f"-{count}").json_lines
        assert offsets(records) == [row["offset"] for row in truth[-count:]]
        last = base64.b64decode(records[-1]["value_base64"])
        assert hashlib.sha256(last).hexdigest() == truth[-1]["sha256"]


def test_bytes_that_are_no_text(call: Run, tmp_path: Path) -> None:
    rows = [
        {
            "offset": 0,
            "timestamp": 0,
            "key": b"\xfe",
            "value": b"\xff\x00a\n",
            "headers": [{"key": "h", "value": b"\x80"}],
        },
        {"offset": 1, "timestamp": 0, "key": b'k"', "value": "ü\u2028".encode(), "headers": []},
    ]
    for path, data in make("keratin").build([pa.RecordBatch.from_pylist(rows, SCHEMA)]):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
    assert call("cat", tmp_path).out == b"\\xff\x00a\n\n" + "ü\u2028\n".encode()
    assert call("cat", tmp_path, "--output", "raw").out == b"\xff\x00a\n" + "ü\u2028".encode()
    first, second = call("cat", tmp_path, "--json").json_lines
    assert (first["key_base64"], first["value_base64"]) == ("/g==", "/wBhCg==")
    assert first["headers"] == [{"key": "h", "value_base64": "gA=="}]
    assert "value" not in first
    assert (second["key"], second["value"], second["headers"] or []) == ('k"', "ü\u2028", [])
    _, second = call("cat", tmp_path, "--json", "--base64").json_lines
    assert base64.b64decode(second["value_base64"]).decode() == "ü\u2028"


@pytest.mark.parametrize("form", ["text", "jsonl", "raw", "arrow"])
def test_damage_ends_it_after_the_sound_records(call: Run, logs: Logs, form: str) -> None:
    log = logs.copy("durable-log")
    damaged = segments(log)[1]
    flip(damaged, damaged.read_bytes().find(b'"order":150'))
    result = call("cat", log, "--output", form)
    assert result.fails(1, str(damaged), "byte ", "offset 150", "checksum mismatch")
    if form == "arrow":
        assert pa.ipc.open_stream(result.out).read_all().num_rows == 150
    elif form == "raw":
        assert result.out.endswith(b'{"order":149,"wood":"beech","boards":6,"note":""}')
    else:
        assert len(result.out.splitlines()) == 150
    last = call("cat", log, "-o", "-200", "--json")
    assert last.fails(1, "offset 150")
    assert offsets(last.json_lines) == list(range(100, 150))


def test_a_torn_tail_ends_it_quietly(call: Run, osiris: Path) -> None:
    result = call("cat", osiris / "crash", "-o", "-1", "--json")
    assert (result.code, result.err) == (0, "")
    assert len(result.json_lines) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "nowhere"], ["-o", "@noon"], ["-o", "--5"], ["-o", "9" * 30], ["-o", "@" + "9" * 30], ["-o", "٣"],
        ["-c", "many"], ["-c", "-1"], ["--output", "xml"], ["--base64"], ["--json", "--output", "raw"],
        ["--option", "record_size"], ["--option", "record_size=3"], ["--format", "pulsar"], ["--nonsense"],
    ],
)  # fmt: skip
def test_wrong_usage(call: Run, logs: Logs, arguments: list[str]) -> None:
    assert call("cat", logs.copy("keratin"), *arguments).fails(2)


def test_a_format_without_time(call: Run, logs: Logs) -> None:
    assert call("cat", logs.copy("durable-log"), "-o", "@2023-11-14").fails(2, "have no time")


def test_null_values(tmp_path: Path, call: Run) -> None:
    path = tmp_path / "log"
    with duramen.open(path, "a", format="keratin") as log:
        log.append(b"one", key=b"k")
        log.append(None, key=b"k", headers=[("h", b"v")])
        log.append_batch([b"", None])
    assert call("cat", path).text == "one\n\n\n\n"
    assert call("cat", path, "--output", "raw").text == "one"
    lines = call("cat", path, "--json").text
    assert [json.loads(line)["value"] for line in lines.splitlines()] == ["one", None, "", None]
    assert "tombstone" in call("dump", next((path / "segments").glob("*.log"))).text
    (tmp_path / "lines").write_text(lines)
    new = tmp_path / "new"
    assert call("append", new, tmp_path / "lines", "--jsonl", "--option", "dialect=document").code == 0
    assert call("cat", new, "--json").json_lines == [json.loads(line) for line in lines.splitlines()]
    (tmp_path / "lines").write_text('{"key": "k"}\n')
    assert "the field 'value' is missing" in call("append", new, tmp_path / "lines", "--jsonl").err


# --- decoded values


@pytest.fixture
def messages(tmp_path: Path) -> Path:
    with duramen.open(tmp_path / "messages", "a") as log:
        log.append(amqp.section(0x74, amqp.map_of([(amqp.text("n"), b"\x50\x05")])) + amqp.data(b"hello"), key=b"k")
        log.append(amqp.data(b"\xff"))
        log.append(b"junk")
    return tmp_path / "messages"


def test_decoded_values_as_text_and_as_json(call: Run, messages: Path) -> None:
    result = call("cat", messages, "--decode", "amqp", "--on-malformed", "raw")
    assert [json.loads(line) for line in result.text.splitlines()] == [
        {"body": {"data": "hello"}, "application_properties": {"n": {"type": "ubyte", "text": "5"}}},
        {"body": {"data_base64": "/w=="}},
        {"_malformed": {"reason": "byte 0: not a section of a message", "bytes": "junk"}},
    ]
    lines = call("cat", messages, "--decode", "amqp", "--decode-key", "utf8", "--on-malformed", "raw", "--json")
    found = lines.json_lines
    assert [line["key"] for line in found] == ["k", None, None]
    assert found[0]["value"]["body"] == {"data": "hello"}
    assert (found[2]["value"], found[2]["_malformed"]["bytes"]) == (None, "junk")


def test_decoded_values_as_arrow(call: Run, messages: Path) -> None:
    out = call("cat", messages, "--decode", "amqp", "--on-malformed", "raw", "--output", "arrow").out
    table = pa.ipc.open_stream(out).read_all()
    assert table.column_names == [*SCHEMA.names, "_malformed"]
    assert [value and value["body"]["data"] for value in table["value"].to_pylist()] == [b"hello", b"\xff", None]
    empty = call("cat", messages, "--from", "end", "--decode", "amqp", "--output", "arrow").out
    assert pa.ipc.open_stream(empty).read_all().schema.field("value").type == table.schema.field("value").type


def test_a_malformed_value_ends_the_output(call: Run, messages: Path) -> None:
    assert call("cat", messages, "--decode", "amqp").fails(1, "offset 2: the value is not amqp")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--decode", "amqq"], "decode must be"), (["--on-malformed", "raw"], "only with decode"),
        (["--decode", "amqp", "--output", "raw"], "drop --decode"),
        (["--decode-key", "utf8"], "prints no keys"), (["--decode", "json", "--schema", "a"], "cannot be read"),
        (["--decode", "json", "--schema", "@/missing"], "/missing"),
    ],
)  # fmt: skip
def test_wrong_options_of_decoding(call: Run, messages: Path, options: list[str], why: str) -> None:
    assert call("cat", messages, *options).fails(3 if why == "/missing" else 2, why)


def test_a_topic_is_decoded(call: Run, tmp_path: Path) -> None:
    with duramen.Store(tmp_path / "store") as store:
        topic = store.create("orders", partitions=2)
        for number in range(4):
            topic.append(b'{"n": %d}' % number, partition=number % 2)
    found = call("cat", f"{tmp_path}/store#orders", "--decode", "json", "--json").json_lines
    assert sorted((line["partition"], line["value"]["n"]) for line in found) == [(0, 0), (0, 2), (1, 1), (1, 3)]
    assert call("cat", f"{tmp_path}/store#orders", "--decode", "json").text.splitlines()[0] == '{"n":0}'
    arrow = call("cat", f"{tmp_path}/store#orders", "--decode", "json", "--output", "arrow").out
    assert pa.ipc.open_stream(arrow).read_all()["value"].to_pylist()[0] == {"n": 0}

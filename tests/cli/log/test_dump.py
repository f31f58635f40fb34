"""`duramen dump`: every field of any file."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.formats import make
from tests import warm
from tests.cli.running import FORMATS, Logs, Run, flip, segments


def options_of(name: str) -> list[str]:
    if not name.startswith("slot/"):
        return []
    return ["--format", "fixed-slot", "--option", f"record_size={name.split('/')[1][2:]}"]


@pytest.mark.slow
def test_the_fields_of_every_golden_file(call: Run, golden: Path, vectors: dict[str, Any]) -> None:
    described = {name: vector["fields"] for name, vector in vectors.items() if "fields" in vector}
    assert len(described) > 30
    for name, expected in described.items():
        result = call("dump", golden / name, "--json", *options_of(name))
        assert (result.code, result.err) == (0, ""), name
        found = [field for block in result.json_lines for field in block["fields"]]
        wanted = [(field["at"], field["len"], field["name"].split(".")[-1]) for field in expected]
        assert [(field["position"], field["length"], field["name"]) for field in found] == wanted, name
        data = (golden / name).read_bytes()
        for field in found:
            assert field["hex"] == data[field["position"] : field["position"] + field["length"]].hex(), name


@pytest.mark.slow
def test_every_golden_file_can_be_looked_at(call: Run, golden: Path, vectors: dict[str, Any]) -> None:
    for name, vector in vectors.items():
        result = call("dump", golden / name, *options_of(name))
        assert result.code in (0, 1), (name, result.err)
        action = vector.get("expect", {}).get("action")
        if action == "raise":
            assert result.fails(1, name, "byte "), name
            assert "!! " in result.text


@pytest.mark.parametrize("format", FORMATS)
def test_every_file_of_every_format(call: Run, logs: Logs, format: str) -> None:
    log, options = logs.copy(format), logs.options(format)
    for path in sorted(path for path in log.rglob("*") if path.is_file()):
        result = call("dump", path, "--json", *options)
        assert (result.code, result.err) == (0, ""), path
        fields = {(f["position"], f["length"]) for block in result.json_lines for f in block["fields"]}
        assert sum(length for _, length in fields) == path.stat().st_size, path
        text = call("dump", path, *options).text
        assert text.startswith(f"{path}\n")
        assert f"of {format}," in text


def test_the_chunks_of_a_real_stream(call: Run, osiris: Path) -> None:
    stream = osiris / "tracked"
    truth = [json.loads(line) for line in (stream / "chunks_truth.jsonl").read_text().splitlines()]
    found = []
    for segment in sorted(stream.glob("*.segment")):
        for block in call("dump", segment, "--json").json_lines:
            fields = {field["name"]: field.get("value") for field in block["fields"]}
            if fields.get("chunk_type") == 0:  # a client, who told the truth, sees no tracking chunks
                found.append((fields["chunk_id"], fields["chunk_type"], fields["num_records"], fields["crc"]))
    assert found == [(chunk["chunk_id"], chunk["type"], chunk["num_records"], chunk["crc"]) for chunk in truth]


def test_how_it_looks(call: Run, golden: Path) -> None:
    result = call("dump", golden / "keratin" / "segments" / "three" / "00000000000000000000.log", "--to", "109")
    lines = result.text.splitlines()
    assert "  segment of keratin, 201 B" in lines
    assert "rec0  byte 68, 41 B" in lines
    assert "    84–91  00 00 01 8b cf e5 68 00  timestamp_ms  1700000000000" in lines
    assert f"{'':50}2023-11-14T22:13:20Z" in lines
    assert "  100–104  68 65 6c 6c 6f           payload       5 B  hello" in lines
    assert "rec1" not in result.text


def test_a_range(call: Run, logs: Logs) -> None:
    segment = segments(logs.copy("durable-log"))[0]
    positions = [block["position"] for block in call("dump", segment, "--json").json_lines]
    between = call("dump", segment, "--json", "--from", str(positions[3] + 1), "--to", str(positions[6])).json_lines
    assert [block["position"] for block in between] == positions[3:6]
    assert "the range contains no structure" in call("dump", segment, "--from", "99999999").text


def test_long_fields_are_shortened_in_text_only(call: Run, logs: Logs) -> None:
    log = logs.copy("fixed-slot")
    text = call("dump", segments(log)[0], "--to", "100", "--option", "record_size=96").text
    assert "payload  96 B  {" in text
    assert "… 32 bytes more" in text
    block = call("dump", segments(log)[0], "--to", "100", "--json", "--option", "record_size=96").json
    assert len(block["fields"][1]["hex"]) == 2 * 96


def test_a_damaged_place(call: Run, logs: Logs) -> None:
    segment = segments(logs.copy("durable-log"))[0]
    blocks = call("dump", segment, "--json").json_lines
    bad = blocks[2]["position"]
    flip(segment, bad + 40)
    result = call("dump", segment)
    assert result.fails(1, f"{segment}: byte {bad}: checksum mismatch")
    assert f"!! rec2  byte {bad}, " in result.text
    assert "!! checksum mismatch" in result.text
    assert f"the bytes around byte {bad}:" in result.text
    marked = [line for line in result.text.splitlines() if line.startswith(f"!! {bad:>4}  47 4f 4c 44")]
    assert len(marked) == 1
    assert [block["problem"] for block in call("dump", segment, "--json").json_lines][2] == "checksum mismatch"


@pytest.mark.parametrize("format", FORMATS)
def test_it_continues_after_damage(call: Run, logs: Logs, format: str) -> None:
    """Two damaged places: each is shown, everything else as before, and no byte is left out."""
    segment, options = segments(logs.copy(format))[0], logs.options(format)
    before = call("dump", segment, "--json", *options).json_lines
    tops = [block for block in before if "." not in block["title"] and block["title"] not in ("header", "hdr")]
    for hit in (tops[2], tops[5]):
        flip(segment, hit["position"] + (0 if format == "rustlog" else hit["length"] - 1), 0x7F)
        if format == "osiris":  # behind its header, where the checksum is
            flip(segment, hit["position"] + hit["length"] + 6)
    result = call("dump", segment, "--json", *options)
    assert result.code == 1
    assert "and 1 more place" in result.err
    after = result.json_lines
    bad = [block for block in after if block["problem"]]
    assert [block["position"] for block in bad] == [tops[2]["position"], tops[5]["position"]]
    damaged = (tops[2], tops[5])
    ends = {hit["position"]: next(b["position"] for b in tops if b["position"] > hit["position"]) for hit in damaged}
    kept = [b for b in before if not any(start <= b["position"] < end for start, end in ends.items())]
    assert [b["fields"] for b in after if not b["problem"]] == [b["fields"] for b in kept]
    for block in bad:
        assert block["position"] + block["length"] == ends[block["position"]]
    text = call("dump", segment, *options).text
    assert text.count("the bytes around byte") == 2


def test_a_record_out_of_order_is_shown_as_it_is(call: Run, golden: Path, tmp_path: Path) -> None:
    three = (golden / "keratin" / "segments" / "three" / "00000000000000000000.log").read_bytes()
    first = three[68:109]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(three[:109] + first + three[109:])
    result = call("dump", path, "--format", "keratin", "--json")
    assert [block["problem"] for block in result.json_lines] == [
        None, None, "the offset repeats or goes backwards", None, None,
    ]  # fmt: skip
    assert [block["title"] for block in result.json_lines] == ["hdr", "rec0", "rec1", "rec2", "rec3"]


def test_a_long_unreadable_range(call: Run, logs: Logs) -> None:
    segment = segments(logs.copy("durable-log"))[0]
    data = bytearray(segment.read_bytes())
    data[1000:3000] = b"\xee" * 2000
    segment.write_bytes(data)
    result = call("dump", segment)
    assert result.code == 1
    assert "bytes more" in result.text
    assert result.text.count("!! ") < 6
    assert result.text.count("\nrec") > 50


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("with_index", [True, False])
def test_far_into_a_long_segment(call: Run, tmp_path: Path, format: str, with_index: bool) -> None:
    """The place is found, and what is shown there is what a dump from the start shows; damage before it is not met."""
    options = {"record_size": 4000} if format == "fixed-slot" else {}
    with duramen.open(tmp_path / "log", "a", format=format, **options) as log:
        for first in range(0, 1500, 300):
            log.append_batch([b"%06d" % (first + number) + bytes(3994) for number in range(300)])
    segment = segments(tmp_path / "log")[0]
    if not with_index:
        for path in segment.parent.iterdir():
            if path.suffix in (".idx", ".index"):
                path.unlink()
    size, codec = segment.stat().st_size, make(format, **options)
    begin = size * 4 // 5
    known = codec.classify(segment.name) or codec.classify(f"segments/{segment.name}")
    assert known is not None
    data = segment.read_bytes()
    blocks = [block for block in codec.dump(known.role, data, known.base) if block.fields]
    ends = [max(f.position + f.length for f in block.fields) for block in blocks]
    wanted = [b.fields for b, end in zip(blocks, ends, strict=True) if end > begin and b.position < begin + 9000]
    flip(segment, 1500)  # nobody looks there
    words = [word for name, value in options.items() for word in ("--option", f"{name}={value}")]
    result = call("dump", segment, "--from", str(begin), "--to", str(begin + 9000), "--json", *words)
    assert (result.code, result.err) == (0, "")
    found = [[(f["name"], f["position"], f["length"]) for f in block["fields"]] for block in result.json_lines]
    assert found == [[(f.name, f.position, f.length) for f in fields] for fields in wanted]


def test_the_files_of_the_sidecar(call: Run, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append(b"one")
        log.seal()
        log.append(b"two")
    duramen.convert(tmp_path / "log", tmp_path / "stream", "osiris")
    duramen.convert(tmp_path / "stream", tmp_path / "again", "rustlog")
    sidecar = tmp_path / "again" / ".duramen"
    fields = {}
    for path in sorted(sidecar.iterdir()):
        result = call("dump", path, "--json")
        assert (result.code, result.err) == (0, ""), path
        found = [field for block in result.json_lines for field in block["fields"]]
        assert sum(field["length"] for field in found) == path.stat().st_size, path
        fields[path.name] = {field["name"]: field.get("value") for field in found}
        assert "file of a sidecar" in call("dump", path).text
    assert fields.keys() == {"lock", "log.json", "origin.chunks", "origin.json", "sealed.jsonl", "watermark"}
    assert json.loads(fields["log.json"]["json"])["format"] == "rustlog"
    assert fields["origin.chunks"]["first_offset"] == 1
    sealed, watermark = sidecar / "sealed.jsonl", sidecar / "watermark"
    flip(sealed, 10)
    assert call("dump", sealed).fails(1, str(sealed), "checksum mismatch")
    flip(watermark, 4 + 80 + 80 + 20)
    assert call("dump", watermark).fails(1, str(watermark), "torn")
    (sidecar / "log.json").write_bytes(b"{")
    assert call("dump", sidecar / "log.json").fails(1, "not JSON")


def test_colours_on_a_terminal(logs: Logs) -> None:
    segment = segments(logs.copy("durable-log"))[0]
    flip(segment, 40)
    here, there = pty.openpty()
    command = [*warm.duramen(), "dump", str(segment), "--to", "200"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=there, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(there)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is gone
            while data := os.read(here, 65536):
                shown += data
    os.close(here)
    assert process.returncode == 1
    assert b"\x1b[1;31m!! checksum mismatch" in shown


def test_damage_at_the_very_start(call: Run, logs: Logs) -> None:
    segment = segments(logs.copy("osiris"))[0]
    flip(segment, 6)
    assert call("dump", segment).fails(1, str(segment), "byte ")


def test_a_directory_is_not_a_file(call: Run, logs: Logs, tmp_path: Path) -> None:
    log = logs.copy("keratin")
    assert call("dump", log).fails(2, "this is a directory", str(segments(log)[-1]))
    assert call("dump", tmp_path / "keratin" / "groups").fails(2, "this is a directory", "give a file")
    assert call("dump", segments(logs.copy("fixed-slot"))[0]).fails(2, "record_size=96")

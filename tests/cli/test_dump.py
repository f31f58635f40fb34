"""`duramen dump`: every field of any file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import FORMATS, Logs, Run, flip, segments


def options_of(name: str) -> list[str]:
    if not name.startswith("slot/"):
        return []
    return ["--format", "fixed-slot", "--option", f"record_size={name.split('/')[1][2:]}"]


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
    assert "nothing lies in that range" in call("dump", segment, "--from", "99999999").text


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


def test_damage_at_the_very_start(call: Run, logs: Logs) -> None:
    segment = segments(logs.copy("osiris"))[0]
    flip(segment, 6)
    assert call("dump", segment).fails(1, str(segment), "byte ")


def test_a_directory_is_not_a_file(call: Run, logs: Logs, tmp_path: Path) -> None:
    log = logs.copy("keratin")
    assert call("dump", log).fails(2, "this is a directory", str(segments(log)[-1]))
    assert call("dump", tmp_path / "keratin" / "groups").fails(2, "this is a directory", "name a file in it")
    assert call("dump", segments(logs.copy("fixed-slot"))[0]).fails(2, "record_size=96")

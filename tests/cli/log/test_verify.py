"""`duramen verify`: findings, summary, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import FORMATS, Logs, Run, flip, segments

FINDING = {"code", "severity", "path", "message", "action", "position", "first_offset", "last_offset"}


@pytest.mark.parametrize("format", FORMATS)
def test_a_sound_log_is_one_calm_line(call: Run, logs: Logs, format: str) -> None:
    log, options = logs.copy(format), logs.options(format)
    result = call("verify", log, *options)
    assert (result.code, result.err) == (0, "")
    first, *rest = result.text.splitlines()
    assert first.startswith(f"{log}: ok: {format}, ")
    assert "records" in first
    assert rest == (
        ["  rustlog has no checksum: only lengths and the order of offsets can be checked."]
        if format == "rustlog"
        else []
    )
    report = call("verify", log, "--json", *options).json
    assert {"path", "format", "ok", "records", "bytes", "checksum", "segments", "findings"} <= report.keys()
    assert (report["ok"], report["findings"], report["format"]) == (True, [], format)


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "rustlog"])
def test_a_changed_byte_is_found(call: Run, logs: Logs, format: str) -> None:
    log, options = logs.copy(format), logs.options(format)
    damaged = segments(log)[len(segments(log)) // 2]
    flip(damaged, damaged.read_bytes().find(b'"order":150'))
    result = call("verify", log, *options)
    assert (result.code, result.err) == (1, "")
    assert "DAMAGED" in result.text
    assert "checksum mismatch" in result.text
    report = call("verify", log, "--json", *options).json
    assert report["ok"] is False
    found = [finding for finding in report["findings"] if finding["severity"] == "damage"]
    assert len(found) == 1
    assert found[0].keys() >= FINDING
    assert found[0]["path"] == str(damaged)
    assert found[0]["first_offset"] <= 150 <= found[0]["last_offset"]
    assert f"byte {found[0]['position']}" in result.text


def test_rustlog_cannot_tell_and_says_so(call: Run, logs: Logs) -> None:
    log = logs.copy("rustlog")
    flip(segments(log)[1], segments(log)[1].read_bytes().find(b'"order":150'))
    result = call("verify", log)
    assert result.code == 0
    assert "no checksum" in result.text


def test_a_torn_tail_alone_is_fine(call: Run, osiris: Path, logs: Logs) -> None:
    crash = call("verify", osiris / "crash")
    assert crash.code == 0
    assert "torn-tail" in crash.text
    log = logs.copy("rustlog")
    last = segments(log)[-1]
    last.write_bytes(last.read_bytes()[:-3])
    result = call("verify", log, "--json")
    assert result.code == 0
    assert [finding["code"] for finding in result.json["findings"]] == ["torn-tail"]


def test_every_stream_of_the_real_program(call: Run, osiris: Path) -> None:
    streams = sorted(path for path in osiris.iterdir() if path.is_dir())
    result = call("verify", "--json", *streams)
    assert result.code == 0
    assert [report["path"] for report in result.json] == [str(stream) for stream in streams]
    assert all(report["ok"] for report in result.json)


def test_several_logs_and_the_worst_code_wins(call: Run, logs: Logs, tmp_path: Path) -> None:
    good, bad, missing = logs.copy("keratin"), logs.copy("osiris"), tmp_path / "missing"
    flip(segments(bad)[1], 100)
    assert call("verify", good, bad).code == 1
    result = call("verify", missing, bad, good)
    assert result.fails(3, str(missing), "no such file")
    *verdicts, total = [line for line in result.text.splitlines() if not line.startswith(" ")]
    assert [line.split(": ")[1] for line in verdicts] == ["DAMAGED", "ok"]
    assert total.startswith("3 logs: 1 ok, 1 damaged, 1 cannot be checked: ")
    documents = call("verify", missing, bad, good, "--json").json
    assert [document["ok"] for document in documents] == [False, False, True]
    assert "no such file" in documents[0]["error"]


def test_an_index_that_lies(call: Run, logs: Logs) -> None:
    log = logs.copy("durable-log")
    index = log / "segment_00000000000000000120.idx"
    flip(index, 16 * 50 + 8)
    result = call("verify", log)
    assert result.code == 0
    assert "ok, with warnings" in result.text
    assert f"wrong-index-entry  {index.name}, byte 800" in result.text
    assert len(call("cat", log, "-o", "169", "-c", "3").text.splitlines()) == 3


def test_more_findings_than_a_page(call: Run, logs: Logs) -> None:
    log = logs.copy("fixed-slot")
    data = bytearray(segments(log)[0].read_bytes())
    data[250::200] = bytes(byte ^ 1 for byte in data[250::200])
    segments(log)[0].write_bytes(data)
    result = call("verify", log, "--option", "record_size=96")
    assert "more findings: --json lists them all" in result.text

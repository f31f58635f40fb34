"""`duramen info`: what a log is, and as much as possible of a damaged one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duramen.cli.demo.samples import orders
from duramen.formats import make
from tests.cli.running import FORMATS, Logs, Run, flip, segments


@pytest.mark.parametrize("format", FORMATS)
def test_a_sound_log(call: Run, logs: Logs, format: str) -> None:
    log, options = logs.copy(format), logs.options(format)
    info = call("info", log, "--json", *options).json
    assert (info["path"], info["format"]) == (str(log), format)
    assert info["why"]
    assert (info["first_offset"], info["next_offset"]) == (0, 300)
    assert info["records"] == (299 if format == "osiris" else 300)
    assert info["size_bytes"] == sum(path.stat().st_size for path in log.rglob("*") if path.is_file())
    assert info["segment_bytes"] == sum(path.stat().st_size for path in segments(log))
    assert info["end"]["state"] == "clean"
    assert info["end"]["position"] == segments(log)[-1].stat().st_size
    states = [line["state"] for line in info["segments"]]
    assert states == ["sealed"] * (len(states) - 1) + ["active"]
    assert all(line["dialect"] for line in info["segments"])
    assert [bool(line["indexes"]) for line in info["segments"]] == [format != "fixed-slot"] * len(states)
    assert info["problems"] == []
    text = call("info", log, *options).text
    for word in ("offsets", "0 to 299, next 300", "clean", info["capabilities"]["checksum"]):
        assert word in text
    assert ("none: only lengths" in text) == (format == "rustlog")


def test_what_the_formats_own_files_say(call: Run, logs: Logs, osiris: Path) -> None:
    keratin = call("info", logs.copy("keratin"), "--json").json
    assert keratin["facts"]["manifest"]["next_offset"] == 300
    assert keratin["groups"]["groups/orders-0_billing.snap"] == {"acked_until": 120, "inflight": 2}
    assert "acked until 120" in call("info", logs.copy("keratin")).text
    rustlog = call("info", logs.copy("rustlog"), "--json").json
    assert rustlog["facts"]["checkpoint"]["last_cleaned_offset"] == 99
    tracked = call("info", osiris / "tracked", "--json").json
    assert tracked["facts"]["tracking"] == json.loads((osiris / "tracked" / "tracking_truth.json").read_text())
    assert "c-üml 642" in call("info", osiris / "tracked").text


def test_what_lies_around(call: Run, logs: Logs) -> None:
    log = logs.copy("rustlog")
    (log / "00000000000000000120.log").unlink()
    (log / "00000000000000000220.index.rebuilding").touch()
    (log / "notes [red]x \x1b[31m.txt").touch()
    info = call("info", log, "--json").json
    assert info["orphans"] == ["00000000000000000120.index"]
    assert info["leftovers"] == ["00000000000000000220.index.rebuilding"]
    assert info["strays"] == ["notes [red]x \x1b[31m.txt"]
    text = call("info", log).text
    assert "notes [red]x \\x1b[31m.txt" in text


def test_a_single_segment_file(call: Run, logs: Logs) -> None:
    info = call("info", segments(logs.copy("durable-log"))[1], "--json").json
    assert (info["first_offset"], info["next_offset"], info["records"]) == (120, 220, 100)


def test_a_torn_tail_is_no_damage(call: Run, osiris: Path) -> None:
    result = call("info", osiris / "crash", "--json")
    assert (result.code, result.err) == (0, "")
    assert result.json["end"]["state"] == "torn tail"


@pytest.mark.parametrize("format", FORMATS)
def test_damage_is_shown_with_the_rest(call: Run, logs: Logs, format: str) -> None:
    log, options = logs.copy(format), logs.options(format)
    last = segments(log)[-1]
    if format == "rustlog":  # has no checksum: an offset that goes backwards shows
        data = last.read_bytes()
        last.write_bytes(data + data[:100])
    else:
        flip(last, last.read_bytes().find(b'"order":270'))
    result = call("info", log, "--json", *options)
    assert result.fails(1, str(last), "byte ", "offset ")
    info = result.json
    assert info["problems"][0] in result.err
    assert (info["first_offset"], info["records"]) == (0, None)
    assert len(info["segments"]) == len(segments(log))
    assert info["problems"][0] in call("info", log, *options).text


def test_how_a_damaged_log_ends(call: Run, logs: Logs) -> None:
    log = logs.copy("fixed-slot")
    flip(segments(log)[0], 27_050)
    end = call("info", log, "--json", "--option", "record_size=96").json["end"]
    assert (end["state"], end["path"], end["position"]) == ("damage", "00000000.log", 27_000)


def test_a_damaged_file_header(call: Run, logs: Logs) -> None:
    for format in ("keratin", "osiris"):
        log = logs.copy(format)
        flip(segments(log)[0], 5)
        result = call("info", log, "--json")
        assert result.fails(1, str(segments(log)[0]), "byte ")
        info = result.json
        assert (info["format"], info["next_offset"]) == (format, 300)
        assert [line["dialect"] is None for line in info["segments"]] == [True, False, False]
        assert "unreadable" in call("info", log).text


def test_a_record_size_that_was_never_given(call: Run, logs: Logs) -> None:
    result = call("info", logs.copy("fixed-slot"))
    assert result.fails(2, "record_size=96")
    assert "29.3 KiB" in result.text


def test_a_log_without_segments(call: Run, logs: Logs) -> None:
    log = logs.copy("keratin")
    for segment in segments(log):
        segment.unlink()
    result = call("info", log, "--json")
    assert result.fails(1, "the log has no segment")
    assert result.json["facts"]["manifest"]["next_offset"] == 300


def test_many_segments_are_not_all_listed(call: Run, tmp_path: Path) -> None:
    codec = make("durable-log")
    for path, data in codec.build([orders(codec, offset, 1) for offset in range(50)]):
        (tmp_path / path).write_bytes(data)
    text = call("info", tmp_path).text
    assert "… 29 more" in text
    assert len(text.splitlines()) < 40
    assert len(call("info", tmp_path, "--json").json["segments"]) == 50

"""`duramen repair` and `duramen reindex`: what they print, their exit codes, and that nothing changes unasked."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import duramen
from tests.cli.running import FORMATS, Logs, Run, flip, segments


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".duramen" not in path.parts
    }


@pytest.mark.parametrize("format", FORMATS)
def test_a_sound_log_needs_no_repair(call: Run, logs: Logs, format: str) -> None:
    log, options = logs.copy(format), logs.options(format)
    result = call("repair", log, *options)
    assert (result.code, result.err) == (0, "")
    assert "nothing to repair" in result.text
    assert not (log / ".duramen").exists(), "planning leaves no trace"


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "rustlog"])
def test_plan_apply_verify_append_undo(call: Run, logs: Logs, format: str) -> None:
    log, options = logs.copy(format), logs.options(format)
    path = segments(log)[0]
    flip(path, path.stat().st_size // 2)
    before = tree(log)
    assert call("verify", log, *options).code == 1
    planned = call("repair", log, *options)
    assert planned.code == 1
    assert f"duramen repair {log}" in planned.text
    assert "Nothing was changed" in planned.text
    assert tree(log) == before
    assert call("repair", log, "--dry-run", *options).text == planned.text
    document = call("repair", log, "--json", *options).json
    assert {"steps", "losses", "refused", "kept_records", "lost_records", "ok", "applied"} <= document.keys()
    assert (document["ok"], document["applied"]) == (False, False)
    applied = call("repair", log, "--apply", *options)
    assert (applied.code, applied.err) == (0, "")
    assert "quarantine/repair-1" in applied.text
    assert call("verify", log).code == 0
    undone = call("repair", log, "--undo")
    assert undone.code == 0
    assert tree(log) == before
    again = call("repair", log, "--undo")
    assert (again.code, "nothing to undo" in again.err) == (2, True)


def test_undo_after_an_append_needs_force(call: Run, logs: Logs) -> None:
    log = logs.copy("durable-log")
    path = segments(log)[1]
    flip(path, path.stat().st_size // 2)
    assert call("repair", log, "--apply").code == 0
    with duramen.open(log, "a") as opened:
        opened.append(b"new")
    refused = call("repair", log, "--undo")
    assert (refused.code, "--force" in refused.err) == (2, True)
    shown = call("repair", log, "--undo", "--dry-run")
    assert (shown.code, "dropped" in shown.text) == (0, True)
    assert call("repair", log, "--undo", "--force").code == 0


@pytest.mark.parametrize(
    "arguments", [("--apply", "--undo"), ("--apply", "--dry-run"), ("--force",), ("--strategy", "hope")]
)
def test_wrong_usage(call: Run, logs: Logs, arguments: tuple[str, ...]) -> None:
    result = call("repair", logs.copy("keratin"), *arguments)
    assert result.code == 2
    assert result.err.startswith("duramen: ")


def test_places_that_cannot_be_repaired(call: Run, logs: Logs, tmp_path: Path) -> None:
    assert call("repair", tmp_path / "none").code == 3
    assert call("reindex", tmp_path / "none").code == 3
    log = logs.copy("durable-log")
    assert call("repair", segments(log)[0]).code == 2
    (tmp_path / "empty").mkdir()
    assert call("repair", tmp_path / "empty").code == 2


def test_a_live_writer_is_an_error_that_names_it(call: Run, logs: Logs) -> None:
    log = logs.copy("keratin")
    with duramen.open(log, "a"):
        for arguments in (("repair", log, "--apply"), ("reindex", log)):
            result = call(*arguments)
            assert result.code == 3
            assert "already open for writing in this process" in result.err


@pytest.mark.unprivileged
def test_a_directory_that_may_not_be_written(call: Run, logs: Logs) -> None:
    log = logs.copy("durable-log")
    flip(segments(log)[0], 200)
    log.chmod(0o500)
    try:
        assert call("repair", log).code == 1
        assert call("repair", log, "--apply").code == 3
        assert call("reindex", log).code == 3
    finally:
        log.chmod(0o700)


@pytest.mark.parametrize("format", FORMATS)
def test_reindex_says_what_changes(call: Run, logs: Logs, format: str) -> None:
    log, options = logs.copy(format), logs.options(format)
    before = tree(log)
    for path in before:
        if path.endswith((".idx", ".index")):
            (log / path).unlink()
    lost = len(before) - len(tree(log))
    shown = call("reindex", log, "--dry-run", *options)
    assert shown.code == 0
    assert "would be rebuilt" in shown.text
    assert shown.text.count(" made ") >= lost
    assert len(before) - len(tree(log)) == lost
    assert call("reindex", log, "--json", *options).json["changed"] >= lost
    after = tree(log)
    assert {path: after[path] for path in before if path != "manifest.bin"} == {
        path: content for path, content in before.items() if path != "manifest.bin"
    }


def test_a_log_whose_files_are_all_missing(call: Run, tmp_path: Path) -> None:
    """What is left says what can be done: a plan, a refusal in words, or what to name."""
    log, lines = tmp_path / "log", tmp_path / "lines"
    lines.write_bytes(b"abcd\nefgh\n")
    assert call("create", log, "--format", "fixed-slot", "--option", "record_size=4").code == 0
    (log / "00000000.log").unlink()
    fresh = call("repair", log)
    assert (fresh.code, "the first append creates it" in fresh.text) == (1, True)
    assert call("append", log, lines).code == 0
    (log / "00000000.log").unlink()
    assert "offsets 0 to 1: stored once" in call("repair", log).text
    watermark, config = log / ".duramen" / "watermark", log / ".duramen" / "log.json"
    held = watermark.read_bytes()
    watermark.unlink()
    hopeless = call("repair", log)
    assert (hopeless.code, "restore the files from a copy" in hopeless.text) == (1, True)
    assert "nothing is lost" not in hopeless.text
    watermark.write_bytes(held)
    config.unlink()
    assert call("repair", log).fails(2, "only a log's sidecar is here", "`--format F`")
    named = ("--format", "fixed-slot", "--option", "record_size=4")
    assert call("repair", log, "--apply", *named).code == 0
    assert call("append", log, lines).text.endswith("offsets 2 to 3\n")


def rustlog_records(values: list[bytes], first: int = 0) -> bytes:
    """As RustLog's program writes them."""
    return b"".join(struct.pack(">IQ", len(value), offset) + value for offset, value in enumerate(values, first))


@pytest.mark.parametrize(
    ("repeated", "said"),
    [
        ([b"y" * 40] * 30, "no offset is lost: 50 records kept; others with the same offsets are set aside"),
        ([b"x" * 40] * 30, "nothing is lost: 50 records kept"),
    ],
    ids=["others", "copies"],
)
def test_records_that_repeat_offsets_are_lost_only_if_they_are_others(
    call: Run, tmp_path: Path, repeated: list[bytes], said: str
) -> None:
    """RustLog's program starts at offset 0 again after a restart: what it then wrote is no copy."""
    (tmp_path / f"{0:020}.log").write_bytes(rustlog_records([b"x" * 40] * 50) + rustlog_records(repeated))
    shown = call("repair", str(tmp_path))
    assert shown.code == 1
    assert said in shown.text


@pytest.mark.parametrize(
    ("repeated", "whys", "said"),
    [
        ([b"y" * 40] * 10, ["another record with offsets 40 to 49"], "no offset is lost: 56 records kept"),
        ([b"x" * 40] * 10, ["a second copy of offsets 40 to 49"], "nothing is lost: 56 records kept"),
        (
            [b"x" * 40] * 7 + [b"y" * 40] * 3,
            ["a second copy of offsets 40 to 46", "another record with offsets 47 to 49"],
            "no offset is lost: 56 records kept",
        ),
    ],
    ids=["others", "copies", "both"],
)
def test_records_that_repeat_offsets_before_new_ones(
    call: Run, tmp_path: Path, repeated: list[bytes], whys: list[str], said: str
) -> None:
    """Bytes were not compared where new records followed: all that repeats an offset was called a copy."""
    again = rustlog_records([*repeated, *[b"z" * 40] * 6], first=40)
    (tmp_path / f"{0:020}.log").write_bytes(rustlog_records([b"x" * 40] * 50) + again)
    assert [one.why for step in duramen.repair(tmp_path).steps for one in step.removed] == whys
    assert said in call("repair", str(tmp_path)).text

"""Bad input: the right exit code and one line that names the file and the byte, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.running import FORMATS, Logs, Run, segments
from tests.sampling import every

VERBS = ("info", "cat", "verify", "dump")


@pytest.mark.parametrize("verb", VERBS)
def test_paths_that_are_no_logs(call: Run, logs: Logs, tmp_path: Path, verb: str) -> None:
    missing, empty, text, zero = (tmp_path / name for name in ("missing", "empty", "text.txt", "zero"))
    empty.mkdir()
    text.write_text("It was a dark and stormy night; the rain fell in torrents.\n")
    zero.touch()
    assert call(verb, missing).fails(3, str(missing), "no such file or directory")
    assert call(verb, empty).fails(2, str(empty), "directory" if verb == "dump" else "empty")
    assert call(verb, text).fails(2, str(text), "byte 0", "--format")
    assert call(verb, zero).fails(2, str(zero), "holds only zeros")
    inside = segments(logs.copy("rustlog"))[0] / "below"
    assert call(verb, inside).fails(3, str(inside), "not a directory")


@pytest.mark.unprivileged
@pytest.mark.parametrize("verb", VERBS)
def test_no_permission(call: Run, logs: Logs, verb: str) -> None:
    log = logs.copy("rustlog")
    target = segments(log)[-1] if verb == "dump" else log
    target.chmod(0)
    try:
        assert call(verb, target).fails(3, str(target), "permission denied")
    finally:
        target.chmod(0o700)


def test_files_that_are_no_segments(call: Run, logs: Logs) -> None:
    log = logs.copy("keratin")
    for verb in ("info", "cat", "verify"):
        assert call(verb, log / "manifest.bin").fails(2, "manifest of keratin", "duramen dump")
        assert call(verb, log / "segments" / "00000000000000000000.idx").fails(2, "index of keratin")
    assert call("info", log / "segments").fails(2, "open its parent")


def test_names_with_spaces_and_odd_characters(call: Run, logs: Logs) -> None:
    for name in ("with space", "ünïcode", "[bold]", "line\nfeed", os.fsdecode(b"not \xff utf-8")):
        log = logs.copy("osiris", name)
        for verb in ("info", "cat", "verify"):
            assert call(verb, log).code == 0, name
        assert call("info", log, "--json").json["path"] == str(log)
        assert call("dump", segments(log)[0], "--to", "8").code == 0
        segments(log)[0].write_bytes(b"rubbish, and not a segment")
        assert call("cat", log).fails(1, "byte 0")


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_a_log_that_is_cut_anywhere(call: Run, logs: Logs, format: str) -> None:
    """Whatever is left of the last segment: nothing but the last records is lost, and every verb copes."""
    log, options = logs.copy(format), logs.options(format)
    last = segments(log)[-1]
    data = last.read_bytes()
    whole = [record["offset"] for record in call("cat", log, "--json", *options).json_lines]
    lengths = [*range(0, 120, 13), *range(120, len(data), 1999)]
    for length in [*lengths[:: every(8)], len(data) - 1]:
        last.write_bytes(data[:length])
        if format == "fixed-slot" and length < 100:
            continue  # not even slot 0 is there to tell the format
        for verb in VERBS:
            path = last if verb == "dump" else log
            result = call(verb, path, *options)
            assert result.code == 0 or verb == "verify" or result.fails(1, "byte ")
        records = call("cat", log, "--json", *options).json_lines
        assert [record["offset"] for record in records] == whole[: len(records)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Usage: duramen"]),
        (["explode"], ["no such command", "explode"]),
        (["info"], ["missing argument"]),
        (["verify"], ["missing argument"]),
        (["--nonsense"], ["no such option"]),
        (["info", "--nonsense", "."], ["no such option", "duramen info --help"]),
        (["dump", ".", "--from", "-1"], ["--from"]),
    ],
)
def test_wrong_usage(call: Run, arguments: list[str], words: list[str]) -> None:
    result = call(*arguments)
    assert result.code == 2
    assert result.out == b""
    for word in words:
        assert word in result.err
    if arguments:
        assert result.fails(2)


def test_options_of_the_format(call: Run, logs: Logs) -> None:
    log = logs.copy("fixed-slot")
    assert call("verify", log, "--option", "record_size=x").fails(2, "record_size")
    assert call("verify", log, "--option", "record_size=0").fails(2, "record_size must be 1 to")
    assert call("verify", log, "--option", "record_size=95").fails(2, "record_size=96")
    assert call("verify", log, "--option", "colour=red").fails(2, "no option colour")
    assert call("verify", log, "--format", "pulsar").fails(2, "unknown format 'pulsar'", "keratin")


@pytest.mark.parametrize("verb", [*VERBS, "demo"])
def test_help(call: Run, verb: str) -> None:
    result = call(verb, "--help")
    assert result.code == 0
    assert result.text.startswith(f"Usage: duramen {verb}")
    assert max(map(len, result.text.splitlines())) <= 80

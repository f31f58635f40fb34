"""`duramen create`, `append`, `seal`: the real command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import duramen
from tests import warm


def run(*words: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*warm.duramen(), *map(str, words)]
    return subprocess.run(command, input=given, capture_output=True, timeout=60)


def test_create_append_seal(tmp_path: Path) -> None:
    root = tmp_path / "log"
    would, dialect = run("create", root, "--dry-run").stdout.decode().splitlines()
    assert would == f"{root}: would create an empty keratin log"
    assert dialect.startswith("  dialect: document (")
    assert "`dialect=program`" in dialect
    assert not root.exists()
    assert run("create", root, "--format", "rustlog").returncode == 0
    again = run("create", root)
    assert (again.returncode, again.stderr.count(b"\n")) == (2, 1)
    done = run("append", root, "--json", given=b"one\ntwo\n\nlast line without an end")
    tree = {"path": str(root), "first_offset": 0, "records": 4, "dry_run": False}
    assert json.loads(done.stdout) == {**tree, "created": False, "format": "rustlog", "dialect": "document"}
    again = run("append", root, "--dry-run", given=b"x\n")
    assert again.stdout.decode() == f"{root}: would append 1 record, offset 4\n"
    assert run("seal", root, "--dry-run").returncode == 0
    assert run("seal", root).returncode == 0
    with duramen.open(root) as log:
        assert [r.value for r in log.scan()] == [b"one", b"two", b"", b"last line without an end"]
        assert len(log.segments) == 2
    assert duramen.verify(root).findings == []


def test_an_append_that_makes_the_log_says_in_which_dialect(tmp_path: Path) -> None:
    osiris = ("--format", "osiris")
    first, dialect = run("append", tmp_path / "a", *osiris, given=b"x\n").stdout.decode().splitlines()
    assert first == f"{tmp_path / 'a'}: appended 1 record, offset 0"
    assert "RabbitMQ does not read" in dialect
    assert "`dialect=program`: chunk version 0, which RabbitMQ needs" in dialect
    assert run("append", tmp_path / "a", given=b"x\n").stdout.count(b"\n") == 1, "it is there already"
    told = run("append", tmp_path / "b", *osiris, "--option", "dialect=program", given=b"x\n").stdout.decode()
    assert "dialect: program (chunk version 0, which RabbitMQ needs)" in told
    made = run("append", tmp_path / "c", *osiris, "--option", "dialect=program", "--json", given=b"x\n")
    assert json.loads(made.stdout) | {"created": True, "dialect": "program"} == json.loads(made.stdout)
    refused = run("append", tmp_path / "c", "--option", "dialect=document", given=b"x\n")
    assert (refused.returncode, refused.stderr.count(b"\n")) == (2, 1)
    assert b"duramen convert" in refused.stderr


def test_seal_makes_no_log(tmp_path: Path) -> None:
    """A path that is mistyped is no new log; and of an empty one there is nothing to seal."""
    for words in (("seal",), ("seal", "--dry-run")):
        done = run(*words, tmp_path / "nope")
        assert (done.returncode, done.stdout) == (3, b"")
        assert b"no such file" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert run("create", tmp_path / "log").returncode == 0
    before = sorted(tmp_path.rglob("*.log"))
    for words in (("seal",), ("seal", "--dry-run")):
        done = run(*words, tmp_path / "log")
        assert done.returncode == 0
        assert done.stdout.decode() == f"{before[0]}: the active segment is empty: nothing to seal\n"
    assert sorted(tmp_path.rglob("*.log")) == before


def test_input_that_cannot_be_read(tmp_path: Path) -> None:
    done = run("append", tmp_path / "log", tmp_path)
    assert (done.returncode, done.stderr.decode()) == (3, f"duramen: {tmp_path}: is a directory\n")
    closed = f"exec {sys.executable} -m duramen append {tmp_path / 'log'} <&-"
    done = subprocess.run(["sh", "-c", closed], capture_output=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith(b"duramen: standard input: the stream is closed")
    assert done.stderr.count(b"\n") == 1


def test_what_cat_prints_append_takes(tmp_path: Path) -> None:
    lines = [
        {"value": "v", "key": "k", "headers": [{"key": "h", "value": "1"}], "timestamp": "2030-01-01T00:00:00.000Z"},
        {"value_base64": "/w==", "key_base64": "/v8=", "headers": None, "timestamp": "2030-01-01T00:00:00.001Z"},
    ]
    given = "".join(json.dumps(line) + "\n" for line in lines).encode()
    assert run("append", tmp_path / "a", "--jsonl", given=given).returncode == 0
    printed = run("cat", tmp_path / "a", "--output", "jsonl").stdout
    assert run("append", tmp_path / "b", "--jsonl", given=printed).returncode == 0
    assert run("cat", tmp_path / "b", "--output", "jsonl").stdout == printed
    with duramen.open(tmp_path / "b") as log:
        assert log.read(1).key == b"\xfe\xff"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (b"no json\n", b"line 1 is not a valid record"),
        (b'{"value":"x"}\n{"velue":"x"}\n', b"line 2 is not a valid record: unknown field velue"),
        (b"{}\n", b"line 1 is not a valid record: the field 'value' is missing"),
        (b'{"value":"x","timestamp":"yesterday"}\n', b"line 1 is not a valid record"),
        (b"[1]\n", b"line 1 is not a valid record"),
    ],
)
def test_bad_lines(tmp_path: Path, given: bytes, reason: bytes) -> None:
    done = run("append", tmp_path / "log", "--jsonl", given=given)
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_bad_places(tmp_path: Path) -> None:
    missing = run("append", tmp_path / "log", tmp_path / "nope")
    assert (missing.returncode, missing.stderr.count(b"\n")) == (3, 1)
    (tmp_path / "file").write_bytes(b"x")
    assert run("append", tmp_path / "file", given=b"x\n").returncode == 2
    with duramen.open(tmp_path / "held", "a"):
        held = run("append", tmp_path / "held", given=b"x\n")
    assert held.returncode == 3
    assert f"pid {os.getpid()}".encode() in held.stderr
    slots = run("create", tmp_path / "slots", "--format", "fixed-slot", "--option", "record_size=4")
    assert slots.returncode == 0
    assert run("append", tmp_path / "slots", given=b"abcde\n").returncode == 2


def test_lines_are_appended_as_they_come(tmp_path: Path) -> None:
    command = [*warm.duramen(), "append", str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                with duramen.open(tmp_path / "log") as log:
                    if log.next_offset == 1:
                        break
            except duramen.DuramenError:
                pass
            time.sleep(0.05)
        else:
            pytest.fail("the first line was not appended while the pipe was open")
        process.stdin.close()
        assert process.wait(20) == 0


def test_every_durability(tmp_path: Path) -> None:
    for level in ("write", "interval", "fsync"):
        assert run("append", tmp_path / "log", "--durability", level, given=b"x\n").returncode == 0
    with duramen.open(tmp_path / "log") as log:
        assert (log.next_offset, log.durable_offset) == (3, 3)
    wrong = run("append", tmp_path / "log", "--durability", "soon", given=b"x\n")
    assert wrong.returncode == 2
    assert b"durability must be one of write, interval, fsync (got 'soon')" in wrong.stderr

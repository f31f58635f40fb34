"""The verbs that only look, beside a writer in another process that begins segments and removes all but the newest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import duramen
from duramen.cli.log import cat
from duramen.log.maintain.retention import Retention
from tests.cli.running import Run
from tests.sampling import examples

WRITER = """
import sys, duramen
from duramen.log.maintain.retention import Retention
with duramen.open(sys.argv[1], "a", durability="write") as log:
    print("ready", flush=True)
    while True:
        for _ in range(6):
            log.append_batch([b"x" * 500] * 20)
            log.seal()
        log.retain(Retention(before_offset=log.next_offset))
"""
LOOKING = (("verify",), ("info",), ("repair",), ("reindex", "--dry-run"), ("lag",))


@pytest.fixture(params=["durable-log", "keratin", "rustlog", "osiris"])
def moving(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "log"
    with duramen.open(root, "a", format=str(request.param)) as log:
        log.append(b"x")
    with subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        yield root
        assert writer.poll() is None
        writer.kill()


@pytest.mark.slow
def test_nothing_is_called_wrong(moving: Path, call: Run, tmp_path: Path) -> None:
    for number in range(examples(6)):
        for verb, *more in LOOKING:
            done = call(verb, moving, *more)
            assert (done.code, done.err) == (0, ""), (verb, done)
        if number == 1:
            done = call("copy", moving, tmp_path / f"copy-{number}")
            assert (done.code, done.err) == (0, ""), done


def test_cat_says_which_records_it_could_not_show(moving: Path, call: Run) -> None:
    """What was removed before its turn is an error, but for the beginning, which is wherever it is."""
    for _ in range(examples(9)):
        done = call("cat", moving, "--output", "jsonl")
        if done.code:
            assert done.fails(3, "was removed before it was read", "continue at offset")
            assert done.out


def test_a_pass_begins_where_the_log_begins_by_then(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        for number in range(3):
            log.append_batch([b"%d" % number] * 10)
            log.seal()
        readers = [duramen.open(tmp_path / "log") for _ in range(3)]
        starts = (None, 0, 5)
        passes = [reader.batches(from_offset=start) for reader, start in zip(readers, starts, strict=True)]
        log.retain(Retention(before_offset=20))
        assert [batch.column("offset")[0].as_py() for batch in passes[0]] == [20]
        for explicit in passes[1:]:
            with pytest.raises(duramen.DuramenError, match="the log begins at 20 now"):
                list(explicit)
        for reader in readers:
            reader.close()


def test_cat_from_the_beginning_begins_where_the_log_begins_by_then(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append_batch([b"x"] * 10)
        log.seal()
        log.append(b"y")
        with duramen.open(tmp_path / "log") as reader:
            batches = reader.batches(**cat._bounds(reader, cat.LogPosition.parse("beginning"), None))
            log.retain(Retention(before_offset=10))
            assert [batch.column("offset")[0].as_py() for batch in batches] == [10]

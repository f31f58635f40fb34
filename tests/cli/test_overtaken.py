"""The verbs that only look, while the log's writer begins segments and removes all older ones between any two of their
calls to the disk: none fails, and none calls the log damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.log import Retention, WritableLog
from tests.cli.running import Run
from tests.sampling import THOROUGH, every

CALLS = ("map", "size", "list", "kind", "stamp", "names_stamp", "page") if THOROUGH else ("map", "size")
"""The calls between which the writer goes on: what fails in between fails when the next file is opened."""
VERBS = {
    "verify": ("verify",),
    "info": ("info", "--json"),
    "repair": ("repair",),
    "reindex": ("reindex", "--dry-run"),
    "lag": ("lag",),
    "cursors": ("cursor", "list"),
    "groups": ("group", "list"),
    "end": ("cat", "--from=-1"),
    "retain by size": ("retain", "--max-bytes", "1", "--dry-run"),
    "retain by age": ("retain", "--max-age", "0s", "--dry-run"),
    "compact": ("compact", "--key", "delimiter:=", "--dry-run"),
    "copy": ("copy", "OUT"),
    "convert": ("convert", "OUT", "--to", "durable-log", *(
        word for field in ("timestamp", "tracking", "groups", "checkpoint") for word in ("--allow-loss", field)
    )),
}  # fmt: skip
LEAVES_OUT = {"osiris": {"compact"}, "durable-log": {"retain by age"}, "rustlog": {"retain by age"}}
SHARED = ("reindex", "groups", "cursors", "info", "end", "retain by size", "convert")
"""The same code for the plain formats."""
CASES = [
    (format, verb)
    for format in ("durable-log", "keratin", "rustlog", "osiris", "kafka")
    for verb in VERBS
    if verb not in LEAVES_OUT.get(format, ())
    and (THOROUGH or format not in ("durable-log", "rustlog") or verb not in SHARED)
]


class Turns:
    """Counts the calls of a verb to the disk, and lets the writer go on before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self._at: int | None = None
        self._turn: Callable[[], None] | None = None
        for name in CALLS:
            self._wrap(name, monkeypatch)

    def _wrap(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(PosixDisk, name)

        def called(disk: PosixDisk, *arguments: Any, **options: Any) -> Any:
            turn = self._turn
            if turn is not None:
                self.calls += 1
                if self.calls - 1 == self._at:
                    self._turn = None
                    turn()
                    self._turn = turn
            return real(disk, *arguments, **options)

        monkeypatch.setattr(PosixDisk, name, called)

    @contextmanager
    def before_call(self, number: int | None, turn: Callable[[], None]) -> Iterator[None]:
        self.calls, self._at, self._turn = 0, number, turn
        yield
        self._turn = None


def _grow(log: WritableLog) -> None:
    for _ in range(2):
        log.append_batch([b"k=%d" % n for n in range(4)])
        log.seal()
    log.append_batch([b"k=%d" % n for n in range(4)])


@pytest.mark.parametrize(("format", "verb"), CASES)
def test_every_moment(format: str, verb: str, call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, turns = tmp_path / "log", Turns(monkeypatch)
    name, *more = VERBS[verb]
    with duramen.open(root, "a", format=format, durability="write") as log:
        cursor, group = log.cursor("c"), log.group("g")
        log.producer("p").append(b"k=first")

        def turn() -> None:
            first = log.first_offset
            _grow(log)
            cursor.store(log.next_offset)
            group.reset("end")
            log.retain(Retention(before_offset=log.next_offset))
            assert log.first_offset > first

        def look(number: int | None) -> None:
            _grow(log)
            words = [str(tmp_path / f"out-{number}") if word == "OUT" else word for word in more]
            with turns.before_call(number, turn):
                done = call(name, root, *words)
            assert (done.code, done.err) == (0, ""), (number, done)
            assert b"no such file" not in done.out, (number, done)

        turn()
        look(None)
        step = every(max(turns.calls // 7, 1))
        for number in range(turns.calls % step, turns.calls, step):
            look(number)

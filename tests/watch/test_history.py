"""A day of history per log, in the state directory of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen.consumers import ConsumerLag
from duramen.disk import PosixDisk
from duramen.watch import history as module
from duramen.watch.history import EVERY_S, KEPT, History, LastCheck
from duramen.watch.observer import Observation

LOG = "/data/orders"


def seen(at: float, end: int, **lags: int) -> Observation:
    standings = [ConsumerLag("group", name, 0, end, lag) for name, lag in lags.items()]
    return Observation(at, next_offset=end, size_bytes=10 * end, standings=standings)


def test_a_ring_of_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = 20
    monkeypatch.setattr(module, "KEPT", kept)
    history = History(PosixDisk(), str(tmp_path / "state"))
    for number in range(kept + 30):
        history.add(LOG, seen(number * EVERY_S, number, billing=number))
    history.checked(LOG, LastCheck(77, 1))
    points, check = History(PosixDisk(), str(tmp_path / "state")).read(LOG)
    assert [point.next_offset for point in points] == list(range(30, kept + 30))
    assert points[-1].lags == {"group billing": kept + 29}
    assert check == LastCheck(77, 1)
    assert [file.suffix for file in (tmp_path / "state").iterdir()] == [".json"]
    assert next((tmp_path / "state").iterdir()).stat().st_size < 64 * kept + 100


def test_what_is_older_than_a_day_goes(tmp_path: Path) -> None:
    history = History(PosixDisk(), str(tmp_path / "state"))
    history.add(LOG, seen(1000 * EVERY_S, 1))
    history.add(LOG, seen(1000 * EVERY_S + 1, 2))  # of the same interval: it replaces the first
    assert [point.next_offset for point in history.read(LOG).points] == [2]
    history.add(LOG, seen((1000 + KEPT) * EVERY_S, 3))
    assert [point.next_offset for point in history.read(LOG).points] == [3]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100, b'{"duramen": 1, "points": 5} 00000000\n'])
def test_a_file_that_cannot_be_read_starts_over(tmp_path: Path, content: bytes) -> None:
    history = History(PosixDisk(), str(tmp_path))
    history.add(LOG, seen(1000 * EVERY_S, 1))
    file = next(tmp_path.iterdir())
    file.write_bytes(content)
    assert history.read(LOG) == ([], None)
    history.add(LOG, seen(1001 * EVERY_S, 2))
    assert len(history.read(LOG).points) == 1


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    history = History(PosixDisk(), str(tmp_path / "file" / "state"))
    assert history.problem is not None
    history.add(LOG, seen(1000 * EVERY_S, 1))
    assert history.read(LOG) == ([], None)


def test_without_a_directory_nothing_is_kept(tmp_path: Path) -> None:
    history = History(PosixDisk(), None)
    history.add(LOG, seen(1000 * EVERY_S, 1))
    assert (history.read(LOG), history.problem) == (([], None), None)

"""Opening a log for append: against the number of sealed segments, and against the size of the active one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import duramen
from bench import logs
from bench.measure import Samples
from bench.report import Table, at_most, ms
from duramen.disk import PosixDisk
from duramen.disk.vfs import File
from duramen.log.recover import recovery
from duramen.log.segments.listing import Directory, list_log

SEALED = (10, 1000)
ACTIVE_MIB = (0, 1, 16, 64, 256)
SAME = 1.5
"""How far "about the same" goes."""


class Unsynced(PosixDisk):
    """A disk whose syncs do nothing: what is left is the program's own work. Never for data that matters."""

    def create(self, path: str) -> File:
        return _without_sync(super().create(path))

    def open(self, path: str) -> File:
        return _without_sync(super().open(path))

    def sync_directory(self, path: str) -> None:
        return


def _without_sync(file: File) -> File:
    file.sync = lambda: None  # type: ignore[method-assign]
    return file


def opening(scratch: Path, quick: bool) -> Iterator[Table]:
    rounds = 5 if quick else 30
    yield Table(
        "Opening for append: sealed segments of one record each (ms, best of many; syncs left out)",
        [
            "format", "listing, 10 sealed", "open beyond it", "listing, 1,000 sealed", "open beyond it",
            "ratio beyond listing", "bar",
        ],
        _sealed(scratch, rounds),
    )  # fmt: skip
    yield Table(
        "Opening for append: the active segment's size (ms, medians; 1 KiB values, closed log, syncs left out)",
        ["format", *(f"{size} MiB" for size in ACTIVE_MIB)],
        _active(scratch, ACTIVE_MIB, max(3, rounds // 5)),
    )


def _sealed(scratch: Path, rounds: int) -> Iterator[list[str]]:
    for name in logs.FORMATS:
        if not logs.codec(name, 16).capabilities.segments:
            yield [name, "", "", "", "", "one segment only", ""]
            continue
        roots = {}
        for count in SEALED:
            roots[count] = scratch / f"sealed-{count}"
            with duramen.open(roots[count], "a", format=name, disk=Unsynced()) as log:
                for _ in range(count):
                    log.append(b"one record here")
                    log.seal()
        listing, beyond = {count: Samples() for count in SEALED}, {count: Samples() for count in SEALED}
        for _ in range(rounds):
            for count, root in roots.items():
                with _Listing() as within:
                    seconds = _open_seconds(root)
                listing[count].append(within.seconds)
                beyond[count].append(seconds - within.seconds)
        ratio = beyond[SEALED[1]].best / beyond[SEALED[0]].best
        verdict = at_most(ratio, SAME, what=f"{name}: opening with 1,000 sealed segments ÷ with 10, beyond listing")
        cells = [ms(samples.best) for count in SEALED for samples in (listing[count], beyond[count])]
        yield [name, *cells, f"{ratio:.1f}", verdict]
        for root in roots.values():
            shutil.rmtree(root)


class _Listing:
    """How long recovery took to list the directory, while this is entered."""

    def __enter__(self) -> _Listing:
        self.seconds = 0.0
        self._patched = mock.patch.object(recovery, "list_log", self._list)
        self._patched.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patched.stop()

    def _list(self, *arguments: Any) -> Directory:
        start = time.perf_counter()
        found = list_log(*arguments)
        self.seconds += time.perf_counter() - start
        return found


def _active(scratch: Path, sizes_mib: tuple[int, ...], rounds: int) -> Iterator[list[str]]:
    values = logs.values(1000, 1024)
    for name in logs.FORMATS:
        cells = []
        for size in sizes_mib:
            root = scratch / "active"
            options = {"segment_max_bytes": 1 << 30} if logs.codec(name, 1024).capabilities.segments else {}
            options |= logs.options(name, 1024)
            with duramen.open(root, "a", format=name, disk=Unsynced(), durability="write", **options) as log:
                for _ in range(size):
                    log.append_batch(values)
            samples = Samples(_open_seconds(root) for _ in range(rounds))
            cells.append(ms(samples.median))
            shutil.rmtree(root)
        yield [name, *cells]


def _open_seconds(root: Path) -> float:
    start = time.perf_counter()
    log = duramen.open(root, "a", disk=Unsynced())
    seconds = time.perf_counter() - start
    log.close()
    return seconds

"""Opening a log for append: against the number of sealed segments, and against the size of the active one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import duramen
from bench import logs
from bench.measure import Samples
from bench.report import Table, ms
from duramen.disk import PosixDisk
from duramen.disk.base import File
from duramen.log.directory import list_log

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
        "Opening for append: sealed segments of one record each (ms, medians; syncs left out)",
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
        listing, opened = {count: Samples() for count in SEALED}, {count: Samples() for count in SEALED}
        for _ in range(rounds):
            for count, root in roots.items():
                start = time.perf_counter()
                list_log(Unsynced(), str(root), logs.codec(name, 16))
                listing[count].append(time.perf_counter() - start)
                opened[count].append(_open_seconds(root))
        beyond = {count: opened[count].median - listing[count].median for count in SEALED}
        ratio = beyond[SEALED[1]] / beyond[SEALED[0]]
        verdict = f"≤ {SAME} {'met' if ratio <= SAME else 'MISSED'}"
        cells = [ms(value) for count in SEALED for value in (listing[count].median, beyond[count])]
        yield [name, *cells, f"{ratio:.1f}", verdict]
        for root in roots.values():
            shutil.rmtree(root)


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

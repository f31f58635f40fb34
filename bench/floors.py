"""Floors: what the operating system and the kernel take for the same work, with nothing around it."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from duramen.disk import PosixDisk
from duramen.disk.vfs import write_all
from duramen.formats import Capabilities
from duramen.log.segments.active_segment import FILL_AFTER_COMMITS, FILL_BYTES
from duramen.sidecar.watermark import PAGE_BYTES

_THREADS_SOURCE = Path(__file__).with_name("floors.c")


class CommitCalls:
    """The system calls of a commit at `fsync`, in order: a look at the lock, the write, zeros ahead of it where they
    are due, the proof in another file where records have no checksum, the syncs, a look at all that must be in its
    place, and the watermark."""

    def __init__(self, stack: ExitStack, root: Path, data: bytes, *, proves: bool, fills: bool) -> None:
        root.mkdir()
        disk = PosixDisk()
        self._records, self._page = (disk.create(str(root / name)) for name in ("records", "page"))
        for file in (self._records, self._page):
            stack.callback(file.close)
        write_all(self._page, 0, bytes(PAGE_BYTES))
        self._page.sync()
        self._counter = os.open(root / "page", os.O_RDONLY)
        stack.callback(os.close, self._counter)
        self._places = [str(root), str(root / "records"), str(root / "page"), str(root)]
        self._data, self._proves, self._fills = data, proves, fills and 3 * len(data) <= FILL_BYTES
        self._position = self._filled = self._commits = 0
        self._zeros, self._mark = bytes(FILL_BYTES), bytes(PAGE_BYTES)

    def __call__(self) -> None:
        os.stat(self._places[0])
        records, position = self._records, self._position
        write_all(records, position, self._data)
        records.begin_sync(position, len(self._data))
        self._position = position + len(self._data)
        self._commits += 1
        if self._fills and self._position > self._filled and self._commits >= FILL_AFTER_COMMITS:
            self._filled = self._position + FILL_BYTES
            write_all(records, self._position, self._zeros)
        if self._proves:
            write_all(self._page, 0, self._mark)
            self._page.begin_sync(0, PAGE_BYTES)
        records.sync()
        if self._proves:
            self._page.sync()
        for place in self._places:
            os.stat(place)
        os.pread(self._counter, 4, 0)
        write_all(self._page, 0, self._mark)


def threads_floor(scratch: Path, threads: int, record_bytes: int, seconds: float, limits: Capabilities) -> float | None:
    """Records a second of that many C threads, which share what a commit of the format writes and syncs through one
    mutex and one condition; None without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    program = scratch / "floors"
    if not program.exists():
        subprocess.run([compiler, "-O2", "-pthread", "-o", str(program), str(_THREADS_SOURCE)], check=True)
    records = scratch / "floor-records"
    fill_bytes, proves = FILL_BYTES * limits.cuts_zeros, not limits.record_checksum
    told = [program, records, threads, record_bytes, seconds, fill_bytes, int(proves)]
    rate = float(subprocess.run(list(map(str, told)), check=True, capture_output=True, text=True).stdout)
    records.unlink()
    return rate

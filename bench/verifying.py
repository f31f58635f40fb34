"""`verify` of a whole log, in threads: against the kernel on one core, times the number of cores.

The kernel's speed is its scan of the same files with every checksum, mapped anew each time: who verifies a log touches
every page for the first time. Two logs of each format: one that another program wrote, and one of Duramen's own, whose
sealed segments have two digests of all their bytes in the sidecar. There the kernel does the same: a scan and the two
digests, over steps that are still in the cache; how `verify` compares with the scan alone is shown, too.

Processors share memory and page tables, so that the kernel times their number may be out of reach for anything. What
the bare kernel makes in as many threads, over the same pieces and with nothing else to do, is therefore beside the bar.

Seconds on the clock say little while other programs use the processors, so the ratio of processor seconds is beside it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

import duramen
from bench import logs
from bench.measure import one_core
from bench.report import Table, at_least
from duramen.disk import Mapped, PosixDisk
from duramen.formats import Format, Segment
from duramen.kernel.layout import Columns, Stop, UInt32s
from duramen.log.segments.listing import list_log
from duramen.log.verify.ranges import STEP_BYTES, STEP_RECORDS, TO_THE_END, SegmentRange, cut_ranges
from duramen.log.verify.report import Report
from duramen.log.verify.threads import PIECE_BYTES

BAR, BARE_BAR = 0.8, 0.9
SEGMENTS = 8
APPENDED = 4096


class Seconds(NamedTuple):
    """The best of several rounds: on the clock, and of all processors."""

    clock: float
    processor: float


def whole_logs(scratch: Path, quick: bool) -> Iterator[Table]:
    size = 256 << 20 if quick else 2 << 30
    columns = [
        "format", "log", "kernel GB/s, one core", "verify GB/s", "÷ (kernel × cores)", "bar",
        "bare kernel in threads ÷ (kernel × cores)", "verify ÷ bare", "bar", "by processor time", "÷ (scan × cores)",
        "÷ memcpy, one core", "bar",
    ]  # fmt: skip
    title = f"verify of a log of {size >> 20:,} MiB, 1 KiB values, {_cores()} cores"
    yield Table(title, columns, _rows(scratch, size, 3 if quick else 6))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _rows(scratch: Path, size: int, rounds: int) -> Iterator[list[str]]:
    for name in logs.FORMATS:
        segments = 1 if name == "fixed-slot" else SEGMENTS
        for kind in ("foreign", "sealed"):
            root = scratch / f"{name}-{kind}"
            if kind == "foreign":
                logs.write(root, name, 1024, size // segments, segments)
            else:
                _append(root, name, size, size // segments)
            yield [name, kind, *_row(root, name, kind, rounds)]
            shutil.rmtree(root)


def _append(root: Path, name: str, size: int, segment_bytes: int) -> None:
    """A log as an application leaves it."""
    limits = {"segment_max_bytes": segment_bytes} if logs.codec(name, 1024).capabilities.segments else {}
    values = logs.values(APPENDED, 1024)
    with duramen.open(root, "a", format=name, durability="write", **limits, **logs.options(name, 1024)) as log:
        for _ in range(size // (APPENDED << 10)):
            log.append_batch(values)


def _row(root: Path, name: str, kind: str, rounds: int) -> list[str]:
    fmt, options = logs.codec(name, 1024), logs.options(name, 1024)
    report = duramen.verify(root, format=name, **options)
    assert not report.findings, report.findings
    is_sealed = (root / ".duramen" / "sealed.jsonl").exists()
    best = _take_turns(
        {
            "scan": lambda: scan_on_one_core(fmt, report),
            "kernel": lambda: scan_on_one_core(fmt, report, digests=is_sealed),
            "threads": lambda: scan_in_threads(fmt, str(root), digests=is_sealed),
            "verify": lambda: duramen.verify(root, format=name, **options),
            "memcpy": lambda: copy_on_one_core(report),
        },
        rounds,
    )
    verified, alone, scanned, bare = best["verify"], best["kernel"], best["scan"], best["threads"]
    ratio, to_bare = alone.clock / verified.clock / _cores(), bare.clock / verified.clock
    to_memcpy = best["memcpy"].clock / verified.clock
    return [
        f"{report.bytes / alone.clock / 1e9:.2f}", f"{report.bytes / verified.clock / 1e9:.2f}", f"{ratio:.2f}",
        at_least(ratio, BAR), f"{alone.clock / bare.clock / _cores():.2f}", f"{to_bare:.2f}",
        at_least(to_bare, BARE_BAR, f"{name}, {kind}: verify ÷ the bare kernel in as many threads"),
        f"{alone.processor / verified.processor:.2f}",
        f"{scanned.clock / verified.clock / _cores():.2f}", f"{to_memcpy:.2f}",
        at_least(to_memcpy, BAR, f"{name}, {kind}: verify ÷ memcpy on one core"),
    ]  # fmt: skip


def scan_on_one_core(fmt: Format, report: Report, *, digests: bool = False) -> None:
    """Every record of every segment, checked on one core; and the two digests of a sealed one, if asked."""
    with one_core():
        room: Columns | None = None
        for file in report.segments:
            segment = fmt.open_segment(PosixDisk().map(file.path).data, file.base_offset)
            room = room or segment.room(STEP_RECORDS)
            sums = np.zeros(2, np.uint32) if digests and file is not report.segments[-1] else None
            cursor, stop = segment.start, Stop.LIMIT
            while stop == Stop.LIMIT:
                rows = segment.scan(cursor, max_records=STEP_RECORDS, max_bytes=STEP_BYTES, room=room, digests=sums)
                cursor, stop = rows.cursor, rows.stop


def copy_on_one_core(report: Report) -> None:
    """The bytes of every segment, mapped anew and copied in steps of a few MiB."""
    with one_core():
        target = np.empty(STEP_BYTES, np.uint8)
        for file in report.segments:
            data = np.frombuffer(PosixDisk().map(file.path).data, np.uint8)
            for position in range(0, len(data), STEP_BYTES):
                step = data[position : position + STEP_BYTES]
                np.copyto(target[: len(step)], step)


def scan_segments(fmt: Format, files: Iterable[tuple[str, int]]) -> None:
    """Every record of the segments at these paths and base offsets, wherever this process runs."""
    room: Columns | None = None
    for path, base in files:
        segment = fmt.open_segment(PosixDisk().map(path).data, base)
        room = room or segment.room(STEP_RECORDS)
        _scan_piece(segment, SegmentRange(segment.start, TO_THE_END, True), room, None)


def scan_in_threads(fmt: Format, root: str, *, digests: bool = False) -> None:
    """The same in as many threads as there are cores, in the pieces that `verify` makes; nothing is compared."""
    disk = PosixDisk()
    directory = list_log(disk, root, fmt)
    work: queue.SimpleQueue[tuple[Mapped, Segment, SegmentRange, bool]] = queue.SimpleQueue()
    for files in directory.segments:
        mapped = disk.map(directory.full(files.segment.path))
        segment = fmt.open_segment(mapped.data, files.base)
        whole = [SegmentRange(segment.start, TO_THE_END, True)]
        for piece in cut_ranges(disk, directory, files, fmt, PIECE_BYTES) or whole:
            work.put((mapped, segment, piece, digests and files is not directory.segments[-1]))
    del mapped, segment

    def take() -> None:
        room = None
        with contextlib.suppress(queue.Empty):
            while True:
                mapped, segment, piece, with_digests = work.get_nowait()
                room = room or segment.room(STEP_RECORDS)
                _scan_piece(segment, piece, room, np.zeros(2, np.uint32) if with_digests else None)
                mapped.release(piece.start.position, len(segment.buf) if piece.is_last else piece.stop)

    threads = [threading.Thread(target=take) for _ in range(_cores())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _scan_piece(segment: Segment, piece: SegmentRange, room: Columns | None, digests: UInt32s | None) -> None:
    cursor = piece.start
    stop = len(segment.buf) if piece.is_last else piece.stop
    while cursor.position < stop:
        step_bytes = min(STEP_BYTES, stop - cursor.position)
        rows = segment.scan(cursor, max_records=STEP_RECORDS, max_bytes=step_bytes, room=room, digests=digests)
        if rows.stop != Stop.LIMIT:
            break
        cursor = rows.cursor


def _take_turns(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Seconds]:
    best = dict.fromkeys(contestants, Seconds(float("inf"), float("inf")))
    for _ in range(rounds):
        for name, run in contestants.items():
            clock, processor = time.perf_counter(), time.process_time()
            run()
            took = Seconds(time.perf_counter() - clock, time.process_time() - processor)
            best[name] = Seconds(*map(min, best[name], took))
    return best

"""`verify` of a whole log, in threads: against the kernel on one core, times the number of cores."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import duramen
from bench import logs
from bench.measure import best_seconds, one_core
from bench.reading import scan_all
from bench.report import Table, at_least
from duramen.disk import PosixDisk
from duramen.formats import Format

BAR = 0.8
SEGMENTS = 8


def whole_logs(scratch: Path, quick: bool) -> Iterator[Table]:
    size = 256 << 20 if quick else 2 << 30
    columns = ["format", "segments", "kernel GB/s, one core", "verify GB/s", "÷ (kernel × cores)", "bar"]
    title = f"verify of a log of {size >> 20:,} MiB, 1 KiB values, {_cores()} cores"
    yield Table(title, columns, _rows(scratch, size, 2 if quick else 5))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _rows(scratch: Path, size: int, rounds: int) -> Iterator[list[str]]:
    for name in logs.FORMATS:
        segments = 1 if name == "fixed-slot" else SEGMENTS
        root = scratch / name
        fmt = logs.write(root, name, 1024, size // segments, segments)
        options = logs.options(name, 1024)
        report = duramen.verify(root, format=name, **options)
        assert report.ok, report.findings
        places = [(segment.path, segment.base_offset) for segment in report.segments]

        def kernel(fmt: Format = fmt, places: list[tuple[str, int]] = places) -> None:
            """The scan alone, of files mapped anew: who verifies a log touches every page for the first time."""
            with one_core():
                for path, base in places:
                    scan_all(fmt.open_segment(PosixDisk().map(path).data, base), decode=False)

        seconds = best_seconds(
            {
                "kernel": kernel,
                "verify": lambda root=root, name=name, options=options: duramen.verify(root, format=name, **options),
            },
            rounds,
        )
        speed = report.bytes / seconds["verify"]
        one = report.bytes / seconds["kernel"]
        ratio = speed / (one * _cores())
        yield [
            name, str(segments), f"{one / 1e9:.2f}", f"{speed / 1e9:.2f}", f"{ratio:.2f}", at_least(ratio, BAR),
        ]  # fmt: skip
        shutil.rmtree(root)

"""`python -m bench`: verify and decode for every format and payload size, against memcpy in the same run."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import duramen
from bench import logs
from bench.measure import best_seconds, pin_to_one_core, resident_anonymous_bytes
from duramen import kernel
from duramen.formats.base import Cursor, Segment
from duramen.kernel import reference
from duramen.kernel.layout import FrameColumns, Stop

PAYLOADS = (100, 1024, 10240)
VERIFY_BAR = {"durable-log": 0.5, "keratin": 0.6, "rustlog": 0.6, "osiris": 0.5, "fixed-slot": 0.6}
DECODE_BAR = {"keratin": 0.4, "rustlog": 0.4, "fixed-slot": 0.4}
BARRED_PAYLOAD = 1024
TWIN_BAR = 20.0
READ_BAR_US = 20.0
MEMORY_BAR_MIB = 256


def scan_all(segment: Segment, *, decode: bool) -> int:
    """Every record of a segment, checked, and decoded to Arrow if asked."""
    cursor, records = segment.start, 0
    while True:
        rows = segment.scan(cursor)
        records += rows.count
        if decode:
            segment.decode(rows, ("offset", "timestamp", "value"))
        if rows.stop != Stop.LIMIT:
            return records
        cursor = rows.cursor


def throughput(scratch: Path, size_mib: int, rounds: int) -> Iterator[list[str]]:
    for name in logs.FORMATS:
        for payload in PAYLOADS:
            root = scratch / f"{name}-{payload}"
            fmt = logs.write(root, name, payload, size_mib << 20)
            path = root / fmt.segment_path(0)
            data = np.memmap(path, np.uint8, mode="r")
            target = np.empty_like(data)
            segment = fmt.open_segment(memoryview(data), 0)  # type: ignore[arg-type]
            records = scan_all(segment, decode=False)
            seconds = best_seconds(
                {
                    "memcpy": lambda target=target, data=data: np.copyto(target, data),
                    "verify": lambda segment=segment: scan_all(segment, decode=False),
                    "decode": lambda segment=segment: scan_all(segment, decode=True),
                },
                rounds,
            )
            size = len(data)
            row = [name, f"{payload:,} B", f"{size / seconds['memcpy'] / 1e9:.1f}"]
            for work, bars in (("verify", VERIFY_BAR), ("decode", DECODE_BAR)):
                ratio = seconds["memcpy"] / seconds[work]
                bar = bars.get(name) if payload == BARRED_PAYLOAD else None
                row += [
                    f"{size / seconds[work] / 1e9:.1f}",
                    f"{records / seconds[work] / 1e6:.2f}",
                    f"{ratio:.2f}",
                    "" if bar is None else f"≥ {bar} {'met' if ratio >= bar else 'MISSED'}",
                ]
            yield row
            del data, segment
            shutil.rmtree(root)


def twin() -> Iterator[list[str]]:
    """The compiled scan against its Python twin, 256-byte payloads."""
    from duramen.formats.durable_log import DIALECT as DURABLE
    from duramen.formats.keratin import DIALECT as KERATIN
    from duramen.formats.rustlog import SPEC as RUSTLOG

    for name, dialect in (("durable-log", DURABLE), ("keratin", KERATIN), ("rustlog", RUSTLOG)):
        fmt = logs.codec(name, 256)
        data = bytes(fmt.encode(logs.batch(fmt, 0, 2000, 256), Cursor(0, -1)).data)
        columns = FrameColumns.empty(2000)
        seconds = best_seconds(
            {
                "kernel": lambda d=data, c=columns, t=dialect: kernel.scan_frames(d, 0, len(d), t.layout, c),
                "twin": lambda d=data, c=columns, t=dialect: reference.scan_frames(d, 0, len(d), t.layout, c),
            },
            3,
        )
        yield _twin_row(name, seconds)
    fmt = logs.codec("osiris", 256)
    segment_bytes = fmt.segment_header(0, 0)
    data = segment_bytes + bytes(fmt.encode(logs.batch(fmt, 0, 2000, 256), Cursor(len(segment_bytes), -1)).data)
    from duramen.kernel.layout import ChunkColumns

    chunks = ChunkColumns.empty(2000)
    start = len(segment_bytes)
    seconds = best_seconds(
        {
            "kernel": lambda: kernel.scan_chunks(data, start, len(data), chunks),
            "twin": lambda: reference.scan_chunks(data, start, len(data), chunks),
        },
        3,
    )
    yield _twin_row("osiris", seconds)
    slots = bytes(
        logs.codec("fixed-slot", 256)
        .encode(logs.batch(fmt, 0, 2000, 256).select(["offset", "value"]), Cursor(0, -1))
        .data
    )
    seconds = best_seconds(
        {
            "kernel": lambda: kernel.scan_slots(slots, 0, len(slots), 256, 2000),
            "twin": lambda: reference.scan_slots(slots, 0, len(slots), 256, 2000),
        },
        3,
    )
    yield _twin_row("fixed-slot", seconds)


def _twin_row(name: str, seconds: dict[str, float]) -> list[str]:
    ratio = seconds["twin"] / seconds["kernel"]
    return [name, f"{ratio:,.0f} ×", f"≥ {TWIN_BAR:.0f} {'met' if ratio >= TWIN_BAR else 'MISSED'}"]


def point_reads(scratch: Path, size_mib: int, reads: int) -> Iterator[list[str]]:
    """One record by its offset from a warm segment, through `Log.read`."""
    for name in logs.FORMATS:
        root = scratch / name
        logs.write(root, name, 1024, size_mib << 20)
        options = {"record_size": 1024} if name == "fixed-slot" else {}
        with duramen.open(root, format=name, **options) as log:
            for _ in log.batches(columns=("offset",)):
                pass
            offsets = random.Random(1).choices(range(log.first_offset, log.next_offset), k=reads)
            times = []
            for offset in offsets:
                start = time.perf_counter_ns()
                log.read(offset)
                times.append(time.perf_counter_ns() - start)
        times.sort()
        median, p99 = statistics.median(times) / 1000, times[len(times) * 99 // 100] / 1000
        verdict = "met" if median <= READ_BAR_US else "MISSED"
        yield [name, f"{median:.1f}", f"{p99:.1f}", f"≤ {READ_BAR_US:.0f} µs {verdict}"]
        shutil.rmtree(root)


def memory(scratch: Path, size_gib: int) -> Iterator[list[str]]:
    """Resident memory that a scan of a large log adds, in a process of its own."""
    for name in logs.FORMATS:
        root = scratch / name
        segments = 1 if name == "fixed-slot" else size_gib
        logs.write(root, name, 1024, (size_gib << 30) // segments, segments)
        answer = subprocess.run(
            [sys.executable, "-m", "bench", "--scan-memory", str(root), name],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        grown, peak_bytes = (int(word) for word in answer.stdout.split())
        mib = grown / 2**20
        verdict = "met" if mib < MEMORY_BAR_MIB else "MISSED"
        yield [name, f"{peak_bytes / 2**30:.1f} GiB", f"{mib:.0f} MiB", f"< {MEMORY_BAR_MIB} MiB {verdict}"]
        shutil.rmtree(root)


def scan_memory(root: str, name: str) -> None:
    """Print how far the resident memory grew, at most, while the whole log was decoded; and the bytes read."""
    options = {"record_size": 1024} if name == "fixed-slot" else {}
    with duramen.open(root, format=name, **options) as log:
        start = resident_anonymous_bytes()
        most, total = start, 0
        for batch in log.batches():
            total += batch.column("value").nbytes
            most = max(most, resident_anonymous_bytes())
    print(most - start, total)


def show(console: Console, title: str, columns: list[str], rows: Iterator[list[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
        if console.is_terminal:
            console.print(f"[dim]{' · '.join(row)}", end="\r")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small logs: a look, not a measurement")
    parser.add_argument("--only", choices=("throughput", "twin", "reads", "memory"))
    parser.add_argument("--scan-memory", nargs=2, metavar=("PATH", "FORMAT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.scan_memory:
        scan_memory(*arguments.scan_memory)
        return
    pin_to_one_core()
    console = Console(width=None if sys.stdout.isatty() else 130)
    quick = arguments.quick
    scratch = Path(tempfile.mkdtemp(prefix="duramen-bench-", dir=os.environ.get("TMPDIR")))
    try:
        if arguments.only in (None, "throughput"):
            columns = [
                "format", "payload", "memcpy GB/s", "verify GB/s", "M rec/s", "× memcpy", "bar",
                "decode GB/s", "M rec/s", "× memcpy", "bar",
            ]  # fmt: skip
            rows = throughput(scratch, 32 if quick else 256, 2 if quick else 7)
            show(console, "One core: verify and decode to Arrow, against memcpy of the same bytes", columns, rows)
        if arguments.only in (None, "twin"):
            show(console, "Verify at 256 B: kernel against its Python twin", ["format", "ratio", "bar"], twin())
        if arguments.only in (None, "reads"):
            rows = point_reads(scratch, 64 if quick else 1024, 2000 if quick else 20000)
            title = f"One record by offset, warm segment of {'64 MiB' if quick else '1 GiB'}, 1 KiB values"
            show(console, title, ["format", "median µs", "p99 µs", "bar"], rows)
        if arguments.only in (None, "memory"):
            rows = memory(scratch, 1 if quick else 4)
            show(console, "Resident memory that a full scan adds", ["format", "values", "added", "bar"], rows)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Reading: verify and decode against memcpy, the kernel against its twin, one record by offset, memory of a scan."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import duramen
from bench import logs
from bench.measure import Samples, best_seconds, one_core, resident_anonymous_bytes
from bench.report import Table, at_least, at_most
from duramen import kernel
from duramen.formats import ScanPosition, Segment
from duramen.kernel import reference
from duramen.kernel.layout import ChunkColumns, FrameColumns, Stop

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
        rows = segment.scan(cursor, take_values=decode)
        records += rows.count
        if decode:
            segment.decode(rows, ("offset", "timestamp", "value"))
        if rows.stop != Stop.LIMIT:
            return records
        cursor = rows.cursor


def throughput(scratch: Path, quick: bool) -> Iterator[Table]:
    columns = [
        "format", "payload", "memcpy GB/s", "verify GB/s", "M rec/s", "× memcpy", "bar",
        "decode GB/s", "M rec/s", "× memcpy", "bar",
    ]  # fmt: skip
    rows = _throughput(scratch, 32 if quick else 256, 2 if quick else 7)
    yield Table("One core: verify and decode to Arrow, against memcpy of the same bytes", columns, rows)


def _throughput(scratch: Path, size_mib: int, rounds: int) -> Iterator[list[str]]:
    for name in logs.FORMATS:
        for payload in PAYLOADS:
            root = scratch / f"{name}-{payload}"
            fmt = logs.write(root, name, payload, size_mib << 20)
            path = root / fmt.segment_path(0)
            data = np.memmap(path, np.uint8, mode="r")
            target = np.empty_like(data)
            segment = fmt.open_segment(memoryview(data), 0)  # type: ignore[arg-type]
            with one_core():
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
                    "" if bar is None else at_least(ratio, bar),
                ]
            yield row
            del data, segment
            shutil.rmtree(root)


def twin(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table("Verify at 256 B: kernel against its Python twin", ["format", "ratio", "bar"], _twin())


def _twin() -> Iterator[list[str]]:
    from duramen.formats.durable_log import DIALECT as DURABLE
    from duramen.formats.keratin.keratin import DIALECT as KERATIN
    from duramen.formats.rustlog import SPEC as RUSTLOG

    for name, dialect in (("durable-log", DURABLE), ("keratin", KERATIN), ("rustlog", RUSTLOG)):
        fmt = logs.codec(name, 256)
        data = bytes(fmt.encode(logs.batch(fmt, 0, 2000, 256), ScanPosition(0, -1)).data)
        columns = FrameColumns.empty(2000)
        yield _twin_row(
            name,
            lambda d=data, c=columns, t=dialect: kernel.scan_frames(d, 0, len(d), t.layout, c),
            lambda d=data, c=columns, t=dialect: reference.scan_frames(d, 0, len(d), t.layout, c),
        )
    fmt = logs.codec("osiris", 256)
    segment_bytes = fmt.segment_header(0, 0)
    data = segment_bytes + bytes(fmt.encode(logs.batch(fmt, 0, 2000, 256), ScanPosition(len(segment_bytes), -1)).data)
    chunks = ChunkColumns.empty(2000)
    start = len(segment_bytes)
    yield _twin_row(
        "osiris",
        lambda: kernel.scan_chunks(data, start, len(data), chunks),
        lambda: reference.scan_chunks(data, start, len(data), chunks),
    )
    slots = bytes(
        logs.codec("fixed-slot", 256)
        .encode(logs.batch(fmt, 0, 2000, 256).select(["offset", "value"]), ScanPosition(0, -1))
        .data
    )
    yield _twin_row(
        "fixed-slot",
        lambda: kernel.scan_slots(slots, 0, len(slots), 256, 2000),
        lambda: reference.scan_slots(slots, 0, len(slots), 256, 2000),
    )


def _twin_row(name: str, compiled: object, plain: object) -> list[str]:
    with one_core():
        seconds = best_seconds({"kernel": compiled, "twin": plain}, 3)  # type: ignore[dict-item]
    ratio = seconds["twin"] / seconds["kernel"]
    return [name, f"{ratio:,.0f} ×", at_least(ratio, TWIN_BAR)]


def point_reads(scratch: Path, quick: bool) -> Iterator[Table]:
    title = f"One record by offset, warm segment of {'64 MiB' if quick else '1 GiB'}, 1 KiB values"
    rows = _point_reads(scratch, 64 if quick else 1024, 2000 if quick else 20000)
    yield Table(title, ["format", "median µs", "p99 µs", "bar"], rows)


def _point_reads(scratch: Path, size_mib: int, reads: int) -> Iterator[list[str]]:
    for name in logs.FORMATS:
        root = scratch / name
        logs.write(root, name, 1024, size_mib << 20)
        with one_core(), duramen.open(root, format=name, **logs.options(name, 1024)) as log:
            for _ in log.batches(columns=("offset",)):
                pass
            samples = Samples()
            for offset in random.Random(1).choices(range(log.first_offset, log.next_offset), k=reads):
                start = time.perf_counter()
                log.read(offset)
                samples.append(time.perf_counter() - start)
        median, p99 = samples.median * 1e6, samples.percentile(99) * 1e6
        yield [name, f"{median:.1f}", f"{p99:.1f}", at_most(median, READ_BAR_US, "µs")]
        shutil.rmtree(root)


def memory(scratch: Path, quick: bool) -> Iterator[Table]:
    """In a process of its own per format."""
    rows = _memory(scratch, 1 if quick else 4)
    yield Table("Resident memory that a full scan adds", ["format", "values", "added", "bar"], rows)


def _memory(scratch: Path, size_gib: int) -> Iterator[list[str]]:
    for name in logs.FORMATS:
        root = scratch / name
        segments = 1 if name == "fixed-slot" else size_gib
        logs.write(root, name, 1024, (size_gib << 30) // segments, segments)
        answer = subprocess.run(
            [sys.executable, "-m", "bench", "--scan-memory", str(root), name],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        grown, read_bytes = (int(word) for word in answer.stdout.split())
        mib = grown / 2**20
        verdict = "met" if mib < MEMORY_BAR_MIB else "MISSED"
        yield [name, f"{read_bytes / 2**30:.1f} GiB", f"{mib:.0f} MiB", f"< {MEMORY_BAR_MIB} MiB {verdict}"]
        shutil.rmtree(root)


def scan_memory(root: str, name: str) -> None:
    """Print how far the resident memory grew, at most, while the whole log was decoded; and the bytes read."""
    with one_core(), duramen.open(root, format=name, **logs.options(name, 1024)) as log:
        start = resident_anonymous_bytes()
        most, total = start, 0
        for batch in log.batches():
            total += batch.column("value").nbytes
            most = max(most, resident_anonymous_bytes())
    print(most - start, total)

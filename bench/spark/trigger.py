"""What planning costs on a log of many segments: the first look, and a trigger that finds nothing new.

No Spark: the calls that Spark makes of the source's process for one trigger, by the processor time of this process.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

import duramen
from bench import logs
from duramen.disk import PosixDisk
from duramen.kernel import digest
from duramen.sidecar import Sealed, SealedList
from duramen.spark.source.options import parse_options
from duramen.spark.source.plan import plan_read
from duramen.spark.source.schema import schema_of, wanted_of
from duramen.spark.source.stream import DuramenStreamReader

SEGMENTS = 10_000
EMPTY_BAR_S, PLAN_BAR_S = 0.02, 1.0
LIMIT_BYTES = 1 << 20


def measure(scratch: Path, segments: int = SEGMENTS, rounds: int = 5) -> list[tuple[str, float, float | None]]:
    """Name, value and bar of each figure. A bar is the time allowed, divided by the time taken: 1 or more."""
    path = scratch / f"segments-{segments}"
    _write(path, segments)
    options = parse_options({"path": str(path)}, streaming=False)
    plan_s = min(_cpu(lambda: plan_read(options)) for _ in range(rounds))
    figures = _figures(f"plan {segments:,} segments", plan_s, PLAN_BAR_S)
    for name, extra in (("", {}), (", maxBytesPerTrigger", {"maxBytesPerTrigger": str(LIMIT_BYTES)})):
        empty_s = min(_empty_trigger(path, extra) for _ in range(rounds))
        figures += _figures(f"empty trigger, {segments:,} segments{name}", empty_s, EMPTY_BAR_S)
    return figures


def _figures(name: str, seconds: float, allowed_s: float) -> list[tuple[str, float, float | None]]:
    return [
        (f"{name}, ms of CPU", seconds * 1000, None),
        (f"{name}, {allowed_s * 1000:g} ms ÷ CPU", allowed_s / seconds, 1.0),
    ]


def _empty_trigger(path: Path, extra: dict[str, str]) -> float:
    options = parse_options({"path": str(path), **extra}, streaming=True)
    reader = DuramenStreamReader(options, wanted_of(schema_of(options), options))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    limit = ReadMaxBytes(LIMIT_BYTES) if extra else ReadAllAvailable()

    def trigger() -> None:
        assert json.dumps(reader.latestOffset(end, limit)) == json.dumps(end)
        reader.reportLatestOffset()

    trigger()
    return _cpu(trigger)


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _write(path: Path, segments: int) -> None:
    """A log of tiny segments, sealed as if a writer had rolled that often."""
    logs.write(path, "keratin", 100, 1000, segments)
    with duramen.open(path, "a") as log:
        log.append(b"the last one")
        infos = log.segments
    entries = []
    for info, following in itertools.pairwise(infos):
        data = Path(info.path).read_bytes()
        crc32c, crc32 = digest(memoryview(data))
        entries.append(Sealed(info.base_offset, following.base_offset - 1, len(data), crc32, crc32c))
    SealedList(PosixDisk(), str(path)).replace(entries)

"""Verify on Spark against the kernel on one core times the number of cores: what distributing the work costs.

The kernel's speed is that of its scan of the same files, mapped anew, in this process, on one core. Both take turns.
Start-up is left out: the session is warm, and what a job with as many tasks that do nothing takes is measured beside it
and subtracted. The figure with it is shown, too. Cores share caches and memory, so as many times one core's speed is
more than any program has: what the bare kernel reaches in as many processes, each with its share of the segments, is
shown beside the bar.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import duramen
from bench import logs
from bench.measure import take_turns
from bench.spark import bare
from bench.verifying import scan_on_one_core
from duramen.spark import jobs
from duramen.spark.jobs.task_runner import distribute

BAR = 0.8
FORMAT = "keratin"


def measure(
    spark: SparkSession, scratch: Path, payload_bytes: int, total_bytes: int, rounds: int = 5
) -> list[tuple[str, float, float | None]]:
    """A log of eight segments, and the same bytes in one: that one has to be cut along its index."""
    figures: list[tuple[str, float, float | None]] = []
    for segments, name in ((8, "8 segments"), (1, "1 segment")):
        path = scratch / f"verify-{payload_bytes}-{segments}"
        logs.write(path, FORMAT, payload_bytes, total_bytes // segments, segments)
        figures += _measure(spark, path, f"verify, {payload_bytes} B, {name}", rounds)
        shutil.rmtree(path)
    return figures


def _measure(spark: SparkSession, path: Path, label: str, rounds: int) -> list[tuple[str, float, float | None]]:
    cores = spark.sparkContext.defaultParallelism
    size = sum(file.stat().st_size for file in path.rglob("*.log"))
    report = duramen.verify(path)
    assert report.ok, report.findings
    files = [(segment.path, segment.base_offset) for segment in report.segments]
    contestants: dict[str, Callable[[], object]] = {
        "kernel": lambda: scan_on_one_core(logs.codec(FORMAT, 0), report),
        "spark": lambda: jobs.verify(spark, str(path)),
        "nothing": lambda: distribute(spark, abs, list(range(2 * cores))),
    }
    with contextlib.ExitStack() as stack:
        if len(files) >= cores:  # one segment is one process's
            workers = stack.enter_context(bare.processes(cores))
            contestants["bare"] = lambda: bare.scan(workers, FORMAT, files)
        for run in contestants.values():
            run()
        times = take_turns(contestants, rounds)
    kernel, whole, nothing = (times[name].median for name in ("kernel", "spark", "nothing"))
    work = whole - nothing
    figures: list[tuple[str, float, float | None]] = []
    if work > nothing / 4:  # otherwise it is the difference of two noises, and no figure
        figures.append((f"{label}, × kernel on {cores} cores", kernel / cores / work, BAR))
    if "bare" in times:
        figures.append((f"{label}, bare kernel in {cores} processes", kernel / cores / times["bare"].median, None))
    return [
        *figures,
        (f"{label}, with the job's start", kernel / cores / whole, None),
        (f"{label}, GB/s with the job's start", size / whole / 1e9, None),
        (f"{label}, kernel on one core, GB/s", size / kernel / 1e9, None),
        (f"{label}, a job that does nothing, s", nothing, None),
    ]

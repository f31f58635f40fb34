"""How work grows with the log: partitions, memory of a task, time of the commit, at several sizes.

Memory is the largest resident set, without mapped file pages, of any Python worker while a job runs, sampled from
/proc. The commit is what the driver does after the last task.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from bench import logs
from duramen.spark import jobs
from duramen.spark.jobs.export_target import ParquetTarget
from duramen.spark.jobs.scanning import plan_scan, read_options

FORMAT = "keratin"
PAYLOAD_BYTES = 1024
SEGMENT_BYTES = 256 << 20
POLL_S = 0.02


class Run(NamedTuple):
    """One job on one log."""

    job: str
    gigabytes: float
    tasks: int | None
    seconds: float
    worker_mib: float
    commit_s: float | None = None


def measure(spark: SparkSession, scratch: Path, gigabytes: list[float]) -> list[Run]:
    runs: list[Run] = []
    for size in gigabytes:
        path = scratch / f"scale-{size:g}"
        segments = max(1, round(size * 1e9 / SEGMENT_BYTES))
        logs.write(path, FORMAT, PAYLOAD_BYTES, int(size * 1e9 / segments), segments)
        runs += _measure(spark, scratch, path, size)
        shutil.rmtree(path)
    return runs


def _measure(spark: SparkSession, scratch: Path, path: Path, size: float) -> list[Run]:
    out = scratch / "scale-out"
    commits: list[float] = []
    tasks = len(plan_scan(read_options(str(path)), ("offset", "value")).portions)
    files = len(plan_scan(read_options(str(path)), ("offset", "value"), max_bytes=256 << 20).portions)
    jobs.verify(spark, str(path))  # warm
    runs = [_run("verify", size, None, lambda: jobs.verify(spark, str(path)))]  # it cuts as it sees fit
    frame = spark.read.format("duramen").load(str(path))
    runs.append(
        _run("read", size, frame.rdd.getNumPartitions(), lambda: frame.write.format("noop").mode("overwrite").save())
    )
    runs.append(_run("profile", size, tasks, lambda: jobs.profile(spark, str(path), duplicates=False)))
    with _timed_commit(commits):
        shutil.rmtree(out, ignore_errors=True)
        export = _run("export", size, files, lambda: jobs.export(spark, str(path), str(out)))
    runs.append(export._replace(commit_s=commits[-1]))
    shutil.rmtree(out, ignore_errors=True)
    return runs


def _run(job: str, size: float, tasks: int | None, work: Callable[[], object]) -> Run:
    with _Memory() as memory:
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
    return Run(job, size, tasks, seconds, memory.most / 2**20)


class _timed_commit:  # noqa: N801
    """Notes how long a Parquet target's commit takes."""

    def __init__(self, times: list[float]) -> None:
        self._times = times
        self._real = ParquetTarget.commit

    def __enter__(self) -> None:
        real, times = self._real, self._times

        def commit(target: ParquetTarget, *args: object) -> None:
            start = time.perf_counter()
            real(target, *args)  # type: ignore[arg-type]
            times.append(time.perf_counter() - start)

        ParquetTarget.commit = commit  # type: ignore[method-assign, assignment]

    def __exit__(self, *error: object) -> None:
        ParquetTarget.commit = self._real  # type: ignore[method-assign]


class _Memory:
    """Samples the Python workers that descend from this process."""

    def __init__(self) -> None:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            for process in _descendants(os.getpid()):
                self.most = max(self.most, _anonymous_bytes(process))


def _descendants(root: int) -> list[int]:
    """Python workers below a process: those whose command says so."""
    parents: dict[int, int] = {}
    workers = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
        if b"pyspark" in command and b"java" not in command.split(b"\0")[0]:
            workers.append(int(name))
    return [pid for pid in workers if _descends(pid, root, parents)]


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == root:
            return True
    return False


def _anonymous_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0

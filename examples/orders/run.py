"""Runs the job in a process of its own, kills it at random points, and starts it again until it ends by itself.

A third of the kills comes at a named point of a batch (`job.POINTS`), a third between two batches (as soon as Spark has
recorded one as done), and a third at any time. Memory is the peak of resident bytes: all of them, with the pages of
mapped logs, and those that belong to the process alone (anonymous memory, sampled twice a second).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from examples.orders.job import POINTS, STARTED

POLL_S = 0.05
ANY_TIME_S = 20.0
KINDS = ("JVM", "driver", "worker")


@dataclass
class Outcome:
    runs: int = 0
    kills: list[str] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    own_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    cpu_s: float = 0.0


def run(directory: Path, kills: int, seed: int = 1) -> Outcome:
    """Run the job with so many kills. Raises if it fails by itself."""
    rng = random.Random(seed)
    outcome = Outcome()
    while True:
        is_last = len(outcome.kills) >= kills
        how = "" if is_last else ("point", "between", "any time")[len(outcome.kills) % 3]
        done = _batches(directory)
        point, batch = (rng.choice(POINTS), done + rng.randrange(2)) if how == "point" else ("", 0)
        job = _start(directory, point, batch)
        outcome.runs += 1
        code = _follow(job, _due(how, directory, done, rng.uniform(0, ANY_TIME_S)), outcome)
        if code == 0:
            return outcome
        if code != -signal.SIGKILL:
            raise SystemExit(f"the job failed by itself with code {code}: {directory / 'job.log'} says why")
        where = f"{point} of batch {batch}" if point else how
        outcome.kills.append(where)
        print(f"kill {len(outcome.kills)}: {where}, {_batches(directory)} batches done", flush=True)


def _due(how: str, directory: Path, done: int, wait_s: float) -> Callable[[], bool]:
    """Whether it is time for the kill: after one more batch, or so many seconds after the queries were started."""
    if how == "between":
        return lambda: _batches(directory) > done
    if how != "any time":
        return lambda: False
    started = directory / STARTED
    return lambda: started.exists() and time.time() - started.stat().st_mtime > wait_s


def _start(directory: Path, point: str, batch: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "examples.orders.job", str(directory), *([point, str(batch)] if point else [])]
    (directory / STARTED).unlink(missing_ok=True)
    with open(directory / "job.log", "ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)


def _follow(job: subprocess.Popen[bytes], due: Callable[[], bool], outcome: Outcome) -> int:
    """Wait for the job, and kill it when that is due. Measures its processes meanwhile."""
    cpu: dict[int, float] = {}
    turn = 0
    while job.poll() is None:
        if due():
            os.killpg(job.pid, signal.SIGKILL)
        if turn % 10 == 0:
            _measure(job.pid, outcome, cpu)
        turn += 1
        time.sleep(POLL_S)
    _wait_for_workers(job.pid)
    outcome.cpu_s += sum(cpu.values())
    return job.wait()


def _measure(session: int, outcome: Outcome, cpu: dict[int, float]) -> None:
    for pid, used_s in _processes(session):
        cpu[pid] = used_s
        kind = "driver" if pid == session else "worker"
        try:
            if (
                os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "java"
            ):  # also a copy that is about to become another
                kind = "JVM"
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue  # it has ended
        for line in status.splitlines():
            for name, peaks in (("VmHWM:", outcome.peak_bytes), ("RssAnon:", outcome.own_bytes)):
                if line.startswith(name):
                    peaks[kind] = max(peaks[kind], int(line.split()[1]) << 10)


def _wait_for_workers(session: int) -> None:
    """Spark's Python processes end when they notice that the JVM is dead; until then one of them may hold a lock."""
    while any(True for _ in _processes(session)):
        time.sleep(POLL_S)


def _processes(session: int) -> Iterator[tuple[int, float]]:
    """The processes of a session of the operating system that have not ended, with the CPU seconds of each."""
    tick = os.sysconf("SC_CLK_TCK")
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(entry), (int(fields[11]) + int(fields[12])) / tick


def _batches(directory: Path) -> int:
    """How many batches Spark has recorded as done."""
    commits = directory / "checkpoints" / "revenue" / "commits"
    done = [int(path.name) for path in commits.glob("[0-9]*") if path.name.isdecimal()]
    return max(done, default=-1) + 1

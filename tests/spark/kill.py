"""``python -m tests.spark.kill --kills 50``: kill the commits of a streaming query again and again, count the rows.

The commit runs in a process of its own on the driver. It gets SIGKILL at the n-th change that it makes to the disk, n
growing by one each time until every change had its turn, and then from the beginning. Mostly it dies alone, and the
query is started again in the same driver; every sixth time, and at random moments in between, the whole driver dies
with it, and a new one goes on from the checkpoint. Now and then the last entry of Spark's commit log is deleted, too,
so that a batch is replayed that was finished. Tasks fail on purpose all the while (every other first attempt). After
every kill a reader looks for half a batch; at the end every row has to be there once.

``--speculation`` runs a cluster of two workers instead, one of which is slow, so that attempts race.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.spark.conftest import CONF
from tests.spark.exactly_once import (
    GROUP,
    LINES,
    StoppedSource,
    check,
    check_no_half_batch,
    finish,
    forget_last_commit,
    next_batch,
    rows,
    start,
    write_input,
)

PROJECT = Path(__file__).parents[2]


def session(master: str, **more: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("kill")
    for name, value in {**CONF, "spark.driver.memory": "1g", **more}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(StoppedSource)
    return spark


def drive(directory: Path, format: str, stop_at: int | None, alone: int) -> int:
    """A driver. It stops the next commits at the changes ``stop_at``, ``stop_at + 1``, …: ``alone`` times only the
    process that commits, then itself. Without ``stop_at`` it runs the query to its end. Tells each stop on stdout."""
    os.environ[GROUP] = str(os.getpgrp())
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{PROJECT}{os.pathsep}{path}" if path else str(PROJECT)
    spark = session("local[2,4]")

    def run(stop: dict[str, object] | None) -> bool:
        df = rows(spark, directory / "in", failing=True)
        return finish(start(df, directory / "log", directory / "checkpoint", stop, logFormat=format))

    if stop_at is None:
        run(None)
        spark.stop()
        return 0
    for number in range(alone + 1):
        how = "commit" if number < alone else "driver"
        print(f"{how} {stop_at + number}", flush=True)
        if run({"stopAt": stop_at + number, "atBatch": next_batch(directory / "checkpoint"), "how": how}):
            print("ended", flush=True)
            return 0
        check_no_half_batch(directory / "log")
        write_input(directory / "in", 1, count_input(directory / "in"))
    raise AssertionError("the driver outlived its kill")


def run_driver(directory: Path, arguments: list[str], kill_after_s: float | None = None) -> tuple[int, list[str]]:
    """Run a driver to its end; answers its exit code and what it told."""
    command = [sys.executable, "-m", "tests.spark.kill", "--driver", str(directory), *arguments]
    told = directory / "told"
    with (directory / "driver.log").open("ab") as errors, told.open("wb") as out:
        driver = subprocess.Popen(command, cwd=PROJECT, stdout=out, stderr=errors, start_new_session=True)
        try:
            code = driver.wait(kill_after_s if kill_after_s is not None else 900)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            code = driver.wait()
    time.sleep(0.2)  # Python workers of the killed driver end when they notice
    return code, told.read_text().splitlines()


def hunt(directory: Path, kills: int, seed: int, format: str) -> None:
    chance = random.Random(seed)
    write_input(directory / "in", 2)
    checkpoint = directory / "checkpoint"
    step, commits, drivers, forgotten, most = 1, 0, 0, 0, 0
    began = time.monotonic()
    while commits + drivers < kills:
        write_input(directory / "in", 1, count_input(directory / "in"))
        at_random = drivers % 4 == 3
        after_s = chance.uniform(2, 20) if at_random else None
        alone = min(5, kills - commits - drivers - 1)
        arguments = ["--format", format]
        if not at_random:
            arguments += ["--stop-at", str(step), "--alone", str(alone)]
        code, told = run_driver(directory, arguments, after_s)
        stops = [line for line in told if line.startswith(("commit ", "driver "))]
        if "ended" in told:  # that commit had no such step: from the beginning
            commits += len(stops) - 1
            most, step = max(most, int(stops[-1].split()[1]) - 1), 1
        elif code == -signal.SIGKILL:
            commits += sum(line.startswith("commit") for line in stops)
            drivers += 1
            step += len(stops)
        elif code:
            raise SystemExit(f"the driver failed by itself ({code}):\n{(directory / 'driver.log').read_text()[-4000:]}")
        check_no_half_batch(directory / "log")
        if drivers % 2 and next_batch(checkpoint):
            forget_last_commit(checkpoint)
            forgotten += 1
        state = f"{commits} commits and {drivers} drivers killed, next at change {step}"
        print(f"{time.monotonic() - began:5.0f} s  {state}", flush=True)
    if run_driver(directory, ["--format", format])[0]:
        raise SystemExit(f"the last driver failed:\n{(directory / 'driver.log').read_text()[-4000:]}")
    files = count_input(directory / "in")
    check(directory / "log", files)
    where = f"each of their {most}" if most else "some of their"
    print(
        f"{commits} commits (at {where} changes of the disk) and {drivers} "
        f"whole drivers killed, {forgotten} commit log entries deleted; {files * LINES:,} rows: each once, in order, "
        "nothing left over"
    )


def count_input(directory: Path) -> int:
    return len(list(directory.glob("*.txt")))


# --- speculation


def speculate(directory: Path) -> None:
    """A master and two workers on loopback. The first attempt of every other task dawdles when its rows are staged, so
    that a copy of it wins, and it is killed."""
    write_input(directory / "in", 4)
    attempts = directory / "attempts"
    attempts.mkdir()
    with _cluster(directory) as master:
        spark = session(
            master,
            **{
                "spark.speculation": "true", "spark.speculation.interval": "100ms",
                "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.3",
                "spark.speculation.minTaskRuntime": "100ms", "spark.executor.memory": "512m",
                "spark.executorEnv.PYTHONPATH": str(PROJECT),
            },
        )  # fmt: skip
        df = rows(spark, directory / "in").mapInArrow(dawdle(str(attempts)), "value string")
        assert finish(start(df, directory / "log", directory / "checkpoint"))
        spark.stop()
    raced = sorted(attempts.glob("*-1"))
    check(directory / "log", 4)
    if not raced:
        raise SystemExit("no attempt raced another: this shows nothing")
    print(f"{len(raced)} tasks raced a copy of themselves, {4 * LINES:,} rows: each once, in order, nothing left over")


def dawdle(attempts: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task, attempt = f"{context.stageId()}-{context.partitionId()}", context.attemptNumber()
        Path(attempts, f"{task}-{attempt}").touch()
        yield from batches
        if attempt == 0 and context.partitionId() % 2 == 0:
            time.sleep(15)

    return run


class _cluster:  # noqa: N801
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> str:
        import pyspark

        run = [str(Path(pyspark.__file__).parent / "bin/spark-class")]
        port = random.randint(20000, 30000)
        self._start([*run, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)], {})
        master = f"spark://127.0.0.1:{port}"
        for host in ("127.0.0.1", "127.0.0.2"):
            work = self._directory / f"work-{host}"
            worker = [*run, "org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "2", "--memory", "1g"]
            self._start([*worker, "--work-dir", str(work), master], {"SPARK_LOCAL_IP": host})
        time.sleep(8)
        return master

    def _start(self, command: list[str], more: dict[str, str]) -> None:
        out = (self._directory / "cluster.log").open("ab")
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **more}
        environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
        self._started.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True))

    def __exit__(self, *_error: object) -> None:
        for process in reversed(self._started):
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._started:
            process.wait(20)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kill", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", default="keratin", help="of the log (default keratin)")
    parser.add_argument("--speculation", action="store_true", help="race attempts on a cluster instead")
    parser.add_argument("--driver", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stop-at", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--alone", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver is not None:
        return drive(given.driver, given.format, given.stop_at, given.alone)
    with tempfile.TemporaryDirectory(prefix="duramen-kill-") as scratch:
        if given.speculation:
            speculate(Path(scratch))
        else:
            hunt(Path(scratch), given.kills, given.seed, given.format)
    return 0


if __name__ == "__main__":
    sys.exit(main())

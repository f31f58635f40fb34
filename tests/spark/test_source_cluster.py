"""The source away from the driver's process: a standalone cluster of two workers on loopback, and Spark Connect.

Each runs in processes of its own, with what a user would write, and is gone when the test ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.spark.source_logs import expected, write_log

SPARK_HOME = Path(pyspark.__file__).parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for seconds need not be fast later."""

READ = """
import json, sys
from pyspark.sql import SparkSession
kind, address, path, *rest = sys.argv[1:]
builder = SparkSession.builder.config("spark.sql.session.timeZone", "UTC")
if kind == "remote":
    spark = builder.remote(address).getOrCreate()
else:
    for name, value in {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m", "spark.cores.max": "2", "spark.executor.cores": "1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }.items():
        builder = builder.config(name, value)
    spark = builder.master(address).getOrCreate()
def load(**options):
    return spark.read.format("duramen").options(**options).load(path)
frame = load(minPartitions="4", columns="offset,value")
rows = [(row.offset, bytes(row.value).decode()) for row in frame.collect()]
error = ""
try:
    load(onDamage="panic").count()
except Exception as raised:
    error = str(raised)
query = (spark.readStream.format("duramen").option("columns", "offset").load(path).writeStream
         .format("memory").queryName("rows").option("checkpointLocation", rest[0]).trigger(availableNow=True).start())
query.awaitTermination(60)
streamed = spark.sql("SELECT count(*), max(offset) FROM rows").collect()[0]
hosts = []
if kind != "remote":
    status = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    hosts = [f"{info.host()}:{info.port()}" for info in status]
print(json.dumps({"rows": rows, "error": error, "streamed": list(streamed), "hosts": hosts}))
spark.stop()
"""


def run(kind: str, address: str, log: Path, checkpoint: Path) -> dict[str, object]:
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-W", "ignore", "-c", READ, kind, address, str(log), str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def check(answer: dict[str, object], log: Path) -> None:
    wanted = expected(log, ["offset", "value"]).to_pylist()
    assert answer["rows"] == [[row["offset"], row["value"].decode()] for row in wanted]
    assert answer["streamed"] == [len(wanted), len(wanted) - 1]
    assert "option onDamage='panic' is not valid (allowed: fail, skip, report)" in str(answer["error"])
    assert "Traceback" not in str(answer["error"])


@contextlib.contextmanager
def process(*arguments: str, ready: str, log: Path) -> Iterator[str]:
    """A daemon of Spark's, until the block ends; answers the line that says that it is ready."""
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}
    env["SPARK_DAEMON_JAVA_OPTS"] = QUICK
    env["SPARK_WORKER_DIR"] = str(log.parent / "work")
    with log.open("wb") as output:
        started = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments], stdout=output, stderr=output, env=env,
            start_new_session=True, cwd=log.parent,
        )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not (lines := [line for line in log.read_text().splitlines() if ready in line]):
            assert started.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.1)
        yield lines[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_a_cluster_of_two_workers(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 400)
    master = f"spark://127.0.0.1:{(port := free_port())}"
    ui = "--webui-port"
    deploy = "org.apache.spark.deploy"
    worker = (f"{deploy}.worker.Worker", "--cores", "1", "--memory", "600m", ui, "0", master)
    at = ("--host", "127.0.0.1", "--port", str(port), ui, "0")
    with (
        process(f"{deploy}.master.Master", *at, ready="I have been elected leader", log=tmp_path / "master.txt"),
        process(*worker, ready="Successfully registered", log=tmp_path / "first.txt"),
        process(*worker, ready="Successfully registered", log=tmp_path / "second.txt"),
    ):
        answer = run("master", master, log, tmp_path / "checkpoint")
    check(answer, log)
    assert isinstance(answer["hosts"], list)
    assert len(set(answer["hosts"])) == 3, "the driver and two executors"


@pytest.mark.slow
def test_spark_connect(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "osiris", 100)
    check(run("remote", "local[2]", log, tmp_path / "checkpoint"), log)

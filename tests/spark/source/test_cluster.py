"""The source away from the driver's process: a cluster of two executors on loopback, and Spark Connect.

Each runs in processes of its own, with what a user would write, and is gone when the test ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.sampling import thorough_only
from tests.spark.source_logs import expected, write_log
from tests.warm import spark_python

SPARK_HOME = Path(pyspark.__file__).parent

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
    env = {**os.environ, "PYSPARK_PYTHON": spark_python(log.parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    if kind == "master":
        env["SPARK_HOME"] = str(SPARK_HOME)  # where the workers find the program of an executor
    else:
        env["SPARK_TESTING"] = "any port"  # instead of 15002, which another server may hold
    command = [sys.executable, "-W", "ignore", "-c", READ, kind, address, str(log), str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd=log.parent)
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def check(answer: dict[str, object], log: Path) -> None:
    wanted = expected(log, ["offset", "value"]).to_pylist()
    assert answer["rows"] == [[row["offset"], row["value"].decode()] for row in wanted]
    assert answer["streamed"] == [len(wanted), len(wanted) - 1]
    assert "option onDamage='panic' is not valid (allowed: fail, skip, report)" in str(answer["error"])
    assert "Traceback" not in str(answer["error"])


@thorough_only
@pytest.mark.slow
def test_a_cluster_of_two_workers(tmp_path: Path) -> None:
    """Spark's own cluster for tests: master and workers in the driver's JVM, each executor in a process of its own."""
    log = write_log(tmp_path / "log", "keratin", 400)
    answer = run("master", "local-cluster[2,1,600]", log, tmp_path / "checkpoint")
    check(answer, log)
    assert isinstance(answer["hosts"], list)
    assert len(set(answer["hosts"])) == 3, "the driver and two executors"


@pytest.mark.slow
def test_spark_connect(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "osiris", 100)
    check(run("remote", "local[2]", log, tmp_path / "checkpoint"), log)

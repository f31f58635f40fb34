"""Sessions: Ctrl-C and SIGTERM while Spark starts, or sent to a group of processes, end the JVM; a program whose
environment is not activated finds the data source."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import duramen
from duramen.spark import configure, jar
from duramen.spark.engine_jar import JARS, jar_settings
from tests.sampling import THOROUGH, thorough_only
from tests.warm import spark_python

pytestmark = [pytest.mark.spark, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


def jvms(group: int) -> list[int]:
    """The Java processes of a session of processes."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                name, _, fields = (place / "stat").read_text().rpartition(")")
            except OSError:
                continue
            if name.endswith("(java") and int(fields.split()[3]) == group:
                found.append(int(place.name))
    return found


def wait_for(group: int, *, there: bool) -> None:
    deadline = time.monotonic() + 60
    while bool(jvms(group)) != there:
        assert time.monotonic() < deadline, f"{'no' if there else 'a'} JVM after a minute"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM] if THOROUGH else [signal.SIGINT])
def test_a_signal_while_the_jvm_starts(tmp_path: Path, number: signal.Signals) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append(b"one")
    command = [sys.executable, "-m", "duramen.cli.main", "pipeline", "verify", str(tmp_path / "log")]
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True)
    try:
        wait_for(process.pid, there=True)
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        assert process.wait(60) == 128 + number
        wait_for(process.pid, there=False)
    finally:
        for left in [*jvms(process.pid), process.pid]:
            try:
                os.kill(left, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()
    assert (tmp_path / "err").read_text() == ""


INTERRUPTED = """
import os, signal, sys
from pyspark import SparkContext
from duramen.spark import session

try:
    with session("local[1]") as spark:
        os.kill(SparkContext._gateway.proc.pid, signal.SIGTERM)
        SparkContext._gateway.proc.wait(240)
        raise KeyboardInterrupt
except KeyboardInterrupt:
    sys.exit(130)
"""


@thorough_only
def test_a_signal_that_ends_the_jvm_too() -> None:
    """As `timeout` and service managers send it: to the JVM and to this process at once."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (130, "")


JOB = """
import os, sys
from pyspark.sql import SparkSession
from duramen.spark import configure

sys.executable = sys.argv[3]  # this Python, with a start that takes milliseconds
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.execution.arrow.maxBytesPerBatch", "1m")
if sys.argv[2] == "configured":
    builder = configure(builder)
spark = builder.getOrCreate()
assert sys.argv[2] == "plain" or spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == "1m"
print(spark.read.format("duramen").load(sys.argv[1]).count())
frame = spark.read.format("duramen").load(sys.argv[1])
print("engine=jvm" in frame._jdf.queryExecution().toString())
"""


@pytest.mark.skipif(jar() is None, reason="built without a JDK")
def test_the_jar_replaces_none_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert jar_settings({}) == {JARS: jar()}
    assert jar_settings({JARS: "/a.jar,/b.jar"}) == {JARS: f"/a.jar,/b.jar,{jar()}"}
    assert jar_settings({JARS: str(jar())}) == jar_settings({"spark.remote": "sc://host"}) == {}
    assert jar_settings({"spark.master": "sc://host"}) == {}
    for line in ("spark.jars /delta.jar", "spark.jars=/delta.jar"):
        (tmp_path / "spark-defaults.conf").write_text(f"# spark.jars\n{line}\n")
        assert jar_settings({}) == {}
        assert jar_settings({JARS: "/a.jar"}) == {JARS: f"/a.jar,{jar()}"}
    (tmp_path / "spark-defaults.conf").write_text("# spark.jars /none\nspark.jars.packages a:b:1\n")
    assert jar_settings({}) == {JARS: jar()}
    for name, value in (("PYSPARK_SUBMIT_ARGS", "--jars /a.jar pyspark-shell"), ("PYSPARK_GATEWAY_PORT", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert jar_settings({}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["configured", "plain"] if THOROUGH else ["configured"])
def test_a_program_of_an_environment_that_is_not_activated(tmp_path: Path, how: str) -> None:
    """``/venv/bin/python job.py``: Spark takes another Python, unless `configure` names this one. What
    PySpark does without it (``plain``) is asked in a thorough run only."""
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append(b"one")
    (tmp_path / "bin").mkdir()
    bare = tmp_path / "bin" / "python3"
    bare.write_text(f"""#!/bin/sh\nexec {os.path.realpath(sys.executable)} "$@"\n""")  # outside of the environment
    bare.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
    command = [sys.executable, "-c", JOB, str(tmp_path / "log"), how, spark_python(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if how == "configured":
        assert done.stdout == f"1\n{jar() is not None}\n", done.stderr
    else:
        assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: duramen" in done.stderr


@pytest.mark.slow
def test_a_quiet_session_shows_warnings_of_data_loss(tmp_path: Path) -> None:
    """The source runs in a process of Spark's, whose standard error the session puts away."""
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        for number in range(30):
            log.append(b"%d" % number, durability="write")
            if number % 10 == 9:
                log.seal()
    for path in (tmp_path / "log").glob(f"segment_{10:020}.*"):
        path.unlink()
    program = (
        "import sys\nfrom duramen.spark import session\nwith session('local[1]') as spark:\n"
        "    print(spark.read.format('duramen').option('failOnDataLoss', 'false').load(sys.argv[1]).count())"
    )
    run = [sys.executable, "-c", program, str(tmp_path / "log")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "20\n"), done.stderr
    (warning,) = done.stderr.splitlines()
    assert "data loss: offsets 10 to 19 (10 in all)" in warning


def test_configure_beside_a_session_of_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    class Running:
        pythonExec = "/another/python"  # noqa: N815

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(SparkContext, "_active_spark_context", Running())
    with pytest.raises(duramen.UsageError, match="a session is running, with /another/python for its workers"):
        configure(SparkSession.builder)

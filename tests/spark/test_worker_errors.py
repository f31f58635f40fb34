"""What goes wrong around the workers, each as one line that says what to do. No session."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

from duramen.errors import StorageError
from duramen.spark.error_text import HIDE, NOT_INSTALLED
from duramen.spark.sink import make_stream_writer, make_writer
from duramen.spark.source.source import DuramenSource
from tests.spark.source_logs import read_here, write_log
from tests.spark.stream_query import Query

VALUE = StructType([StructField("value", BinaryType())])


def travellers(path: Path) -> dict[str, Any]:
    source = DuramenSource({"path": str(path)})
    options = {"path": str(path)}
    return {
        "source": source,
        "reader": source.reader(source.schema()),
        "stream reader": source.streamReader(source.schema()),
        "writer": make_writer(options, VALUE, False),
        "stream writer": make_stream_writer(options, VALUE, False),
    }


ARRIVES = """
import os, pickle, sys
try:
    pickle.loads(sys.stdin.buffer.read())
except ModuleNotFoundError as error:
    print(error, os.environ.get("SPARK_HIDE_TRACEBACK"), sep="\\n")
"""


@pytest.mark.parametrize("name", ["source", "reader", "stream reader", "writer", "stream writer"])
def test_a_worker_without_duramen_says_so(tmp_path: Path, name: str) -> None:
    """What Spark sends to a worker arrives in a Python that has nothing but itself."""
    sent = travellers(write_log(tmp_path / "log", "keratin", 10))[name]
    pickled = cloudpickle.dumps(sent)
    command = [sys.executable, "-I", "-S", "-c", ARRIVES]
    done = subprocess.run(command, input=pickled, capture_output=True, check=True, timeout=60)
    told, hides = done.stdout.decode().splitlines()
    assert told.startswith(NOT_INSTALLED)
    assert told.removeprefix(NOT_INSTALLED).strip(), "it names the Python of the worker"
    assert hides == "1", "Spark then leaves the traceback out"
    arrived = pickle.loads(pickled)
    assert type(arrived) is type(sent)
    assert arrived.__dict__.keys() == sent.__dict__.keys()
    assert HIDE not in os.environ


@contextmanager
def another_user() -> Iterator[None]:
    """Without root's right to open everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def refused(action: Callable[[], Any], path: Path | str) -> None:
    with another_user(), pytest.raises(StorageError) as caught:
        action()
    assert f"{path}: " in str(caught.value)
    assert str(caught.value).endswith("permission denied (check its permissions, or run as another user)")


@pytest.mark.skipif(sys.platform != "linux", reason="changes the effective user")
def test_a_path_without_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.getuid() and above != Path("/tmp"):
            above.chmod(0o755)
    closed, partly, readable = (write_log(tmp_path / name, "keratin", 100) for name in ("closed", "partly", "readable"))
    segment = sorted((partly / "segments").glob("*.log"))[1]
    read_here(partly)
    segment.chmod(0)
    closed.chmod(0)
    (readable / ".duramen").chmod(0o555)
    try:
        refused(lambda: read_here(closed), closed / ".duramen/log.json")
        refused(lambda: DuramenSource({"path": str(closed / "below")}).schema(), closed / "below")
        refused(lambda: read_here(partly), segment)
        refused(lambda: make_writer({"path": str(closed / "new")}, VALUE, False), closed / "new")
        with another_user():
            assert Query().run(readable, cursor="one") == 100
        told = capsys.readouterr().err
        assert "duramen: the cursor 'one' is not kept: " in told
        assert "permission denied (check its permissions, or run as another user)" in told
    finally:
        for path in (segment, closed, readable / ".duramen"):
            path.chmod(0o755)

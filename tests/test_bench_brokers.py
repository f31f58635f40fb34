"""The benchmark beside brokers, as far as it goes without one: what is missing is named, ratios are right, and nothing
is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.brokers import contest, install, kafka, kafkanode, rabbitmq
from bench.brokers.__main__ import markdown
from bench.report import Subject
from tests.interop import broker

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed yet, and no result is there."""
    monkeypatch.setattr(install, "HOME", tmp_path / "home")
    monkeypatch.setattr(contest, "RESULTS", {})
    monkeypatch.setattr(sys, "path", list(sys.path))


def said(subject: Subject, scratch: Path) -> list[str]:
    return [" ".join(row) for table in subject(scratch, True) for row in table.rows]


def test_without_maven_kafka_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "package", lambda name: "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert said(kafka.kafka, tmp_path) == [f"{kafka.PEER} not run: mvn is missing"]
    assert not contest.RESULTS


def test_a_client_that_pip_does_not_find_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (line,) = said(rabbitmq.rabbitmq, tmp_path)
    assert line.startswith("RabbitMQ Streams not run: pip install rstream failed: ERROR: ")
    assert not list((tmp_path / "home").rglob("*rstream*")), "a failed installation would be taken for a whole one"


def test_without_apt_rabbitmq_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "package", lambda name: "1")
    monkeypatch.setattr(broker, "SERVER", tmp_path / "no-such-server")
    monkeypatch.setattr(rabbitmq.install, "run", lambda *_, **__: "")  # apt-get says that all is well
    assert said(rabbitmq.rabbitmq, tmp_path) == [
        f"RabbitMQ Streams not run: the package brought no {tmp_path / 'no-such-server'}"
    ]


def test_a_command_that_hangs_or_fails_says_so() -> None:
    with pytest.raises(install.NotRun, match=r"a nap took longer than 0\.2 s"):
        install.run(["sleep", "30"], "a nap", timeout_s=0.2)
    with pytest.raises(install.NotRun, match="a try failed: E: no such thing"):
        install.run(["sh", "-c", "echo fetching; echo 'E: no such thing'; exit 3"], "a try")
    with pytest.raises(install.NotRun, match="no-such-command is missing"):
        install.run(["no-such-command"], "a try")


def test_the_newest_fitting_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    metadata = tmp_path / "org" / "x" / "thing" / "maven-metadata.xml"
    metadata.parent.mkdir(parents=True)
    versions = ("3.5.9", "4.0.0", "4.2.0", "4.10.0", "4.2.1-preview1", "5.0.0")
    metadata.write_text("".join(f"<version>{version}</version>\n" for version in versions))
    monkeypatch.setattr(install, "CENTRAL", tmp_path.as_uri())
    assert install.newest("org.x", "thing", "4.3.0") == "4.2.0"
    assert install.newest("org.x", "thing", "4.11.0.dev0") == "4.10.0"
    with pytest.raises(install.NotRun, match="no thing for 6"):
        install.newest("org.x", "thing", "6.0.0")
    with pytest.raises(install.NotRun, match="does not answer for other"):
        install.newest("org.x", "other", "4.3.0")


def test_ratios_are_against_keratin_at_the_same_level(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def taking(seconds: float) -> contest.Contestant:
        @contextmanager
        def contestant() -> Iterator[Callable[[], None]]:
            def work() -> None:
                clock[0] += seconds

            clock[0] += 1000  # what is prepared is not measured
            yield work

        return contestant

    monkeypatch.setattr(contest.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(contest.os, "sync", lambda: None)
    speeds = [("duramen keratin", "write", 1.0), ("duramen keratin", "fsync", 10.0), ("duramen keratin", "write", 5.0)]
    speeds += [("peer", "write", 4.0), ("peer", "fsync", 5.0)]
    entries = [contest.Entry(name, "client", level, level, taking(seconds)) for name, level, seconds in speeds]
    results = contest.measure("title", entries, 1000, 3)
    assert [result.ratio for result in results] == pytest.approx([1.0, 1.0, 5.0, 4.0, 0.5])
    assert [result.per_second for result in results] == pytest.approx([1000, 100, 200, 250, 200])
    table = contest.table("title", results, "note")
    assert "| peer | client | write | 250 | 0.3 | 0.3 | 4.00 × | 4.00 × |" in markdown(table, list(table.rows))


def test_duramen_takes_part(tmp_path: Path) -> None:
    entries = contest.duramen_publishers(tmp_path, 2000, ["write", "fsync"])
    levels = [(entry.name.removeprefix("duramen "), entry.level) for entry in entries]
    assert levels == [("keratin", "write"), ("osiris", "write"), ("keratin", "fsync"), ("osiris", "fsync")]
    for entry in [*entries, *contest.duramen_consumers(tmp_path, 2000)]:
        with entry.contestant() as work:
            work()


def test_a_reader_that_gets_too_little_is_noticed(tmp_path: Path) -> None:
    contest.duramen_consumers(tmp_path, 2000)
    short = contest._scanning(tmp_path / "consume-keratin", 3000)
    with pytest.raises(RuntimeError, match=r"2,048,000 of 3,072,000"), short() as work:
        work()


def test_a_node_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of Java, a program that formats, and dies when it should serve."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\ncase "$*" in *StorageTool*) exit 0;; esac\necho "port is taken" >&2\nexit 1\n')
    java.chmod(0o755)
    monkeypatch.setattr(install, "java", lambda: str(java))
    monkeypatch.setattr(install, "jars", lambda *_: tmp_path)
    with pytest.raises(install.NotRun, match="Kafka did not start: port is taken"), kafkanode.Node(tmp_path / "node"):
        pass


def test_sigterm_ends_what_was_started(tmp_path: Path) -> None:
    """As `timeout` does it: the server of a node is gone when the run is."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\ncase "$*" in *StorageTool*) exit 0;; esac\nexec sleep 60\n')
    java.chmod(0o755)
    code = textwrap.dedent(f"""
        from pathlib import Path
        from bench.brokers import install, kafkanode
        from bench.brokers.ending import ends_on_sigterm
        install.java = lambda: {str(java)!r}
        install.jars = lambda *_: Path("/")
        def wait(node):
            print(node._process.pid, flush=True)
            import time
            time.sleep(60)
        kafkanode.Node._wait = wait
        with ends_on_sigterm(), kafkanode.Node(Path({str(tmp_path / "node")!r})):
            pass
        """)
    run = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    with run, run.stdout as output:
        server = int(output.readline())
        os.kill(server, 0)
        run.send_signal(signal.SIGTERM)
        assert run.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)

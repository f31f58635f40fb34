"""A real Prometheus scrapes `duramen serve` and evaluates our rules (``make prometheus`` installs it)."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.metrics import RULES, prometheus_rules
from duramen.watch.api import exposition
from duramen.watch.watcher import Watch

PATIENCE_S = 180
CASES = """
rule_files: [duramen.rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'duramen_verify_ok{log="sound"}', values: '1x20'}
      - {series: 'duramen_verify_ok{log="events"}', values: '1x4 0x4 1x9'}
      - {series: 'duramen_index_rebuilds_total{log="once"}', values: '0x3 1x15'}
      - {series: 'duramen_index_rebuilds_total{log="events"}', values: '0x3 3x15'}
      - {series: 'duramen_page_faults_total{log="events"}', values: '0+900000x18'}
      - {series: 'duramen_sync_seconds_bucket{log="events",le="0.1"}', values: '0+10x18'}
      - {series: 'duramen_sync_seconds_bucket{log="events",le="0.3"}', values: '0+20x18'}
      - {series: 'duramen_sync_seconds_bucket{log="events",le="+Inf"}', values: '0+20x18'}
      - {series: 'duramen_disk_free_ratio{log="events"}', values: '0.05x18'}
      - {series: 'duramen_poisoned{log="events"}', values: '0x4 1x14'}
      - {series: 'duramen_readable{log="events"}', values: '0x18'}
    alert_rule_test:
"""
FIRES = {
    "DuramenDamage": (6, 12), "DuramenIndexRebuilds": (6, 2), "DuramenPageFaults": (6, 0), "DuramenSlowSync": (8, 0),
    "DuramenDiskFull": (7, 4), "DuramenPoisoned": (8, 2), "DuramenUnreadable": (6, 0),
}  # fmt: skip
"""Alert → a minute at which it fires, for the log ``events`` alone, and one at which it does not."""
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [duramen.rules.yml]
scrape_configs: [{{job_name: duramen, static_configs: [{{targets: ["{target}"]}}]}}]
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with duramen.open(tmp_path / "events", "a", format="keratin") as log:
        log.append_batch([b"value %d" % number for number in range(100)])
        log.cursor("report").store(30)
    return tmp_path / "events"


def program(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"{name} is not installed: make prometheus")


def promtool(*words: str, directory: Path, text: str = "") -> str:
    command = [program("promtool"), *words]
    done = subprocess.run(command, cwd=directory, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_each_rule_fires_when_it_should(tmp_path: Path) -> None:
    (tmp_path / "duramen.rules.yml").write_text(prometheus_rules())
    assert f"{len(RULES)} rules found" in promtool("check", "rules", "duramen.rules.yml", directory=tmp_path)
    cases = []
    for rule in RULES:
        fires, silent = FIRES[rule.name]
        labels = {"log": "events", "severity": rule.severity}
        notes = {"summary": rule.meaning, "description": rule.action}
        for minute, alerts in ((silent, []), (fires, [{"exp_labels": labels, "exp_annotations": notes}])):
            cases.append({"eval_time": f"{minute}m", "alertname": rule.name, "exp_alerts": alerts})
    (tmp_path / "cases.yml").write_text(CASES + "".join(f"      - {json.dumps(case)}\n" for case in cases))
    assert "SUCCESS" in promtool("test", "rules", "cases.yml", directory=tmp_path)


def test_promtool_has_nothing_to_say_about_the_metrics(tmp_path: Path, log: Path) -> None:
    duramen.verify(log, publish=True)
    watch = Watch(PosixDisk(), [str(log)])
    try:
        assert not promtool("check", "metrics", directory=tmp_path, text=exposition(watch, []))
    finally:
        watch.close()


@contextmanager
def running(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[Callable[..., Any]]:
    """A Prometheus that scrapes ``target``; its API, as a function."""
    (directory / "duramen.rules.yml").write_text(prometheus_rules())
    (directory / "prometheus.yml").write_text(CONFIG.format(target=target))
    port = free_port()

    def ask(path: str, **query: str) -> Any:
        try:
            with urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urlencode(query)}", timeout=120) as answer:
                return json.load(answer)["data"]
        except OSError:  # it has not started yet
            return {"alerts": [], "result": []}

    options = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}")
    with (
        open(directory / "prometheus.out", "w") as out,
        running(program("prometheus"), *options, cwd=directory, stdout=out, stderr=out),
    ):
        yield ask


def until(holds: Callable[[], bool], directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, (directory / "prometheus.out").read_text()[-2000:]
        time.sleep(0.2)


@pytest.mark.slow
def test_alerts_fire_for_what_other_processes_find(tmp_path: Path, log: Path) -> None:
    """Four processes: a server, its Prometheus, a writer that rebuilds an index, and a check as cron would run it."""
    program("prometheus")
    serve = (sys.executable, "-m", "duramen", "serve", "events", "--port", "0", "--metrics")
    with running(*serve, cwd=tmp_path, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        target = server.stdout.readline().split("http://")[1].split("/")[0]
        with prometheus(tmp_path, target) as ask:

            def firing() -> set[tuple[str, str]]:
                alerts = ask("alerts")["alerts"]
                return {
                    (one["labels"]["alertname"], one["labels"]["log"]) for one in alerts if one["state"] == "firing"
                }

            until(
                lambda: bool(ask("query", query='duramen_index_rebuilds_total{log="events"} == 0')["result"]), tmp_path
            )
            assert not firing()
            for _ in range(2):
                next(log.rglob("*.idx")).unlink()
                duramen.open(log, "a").close()
            until(lambda: ("DuramenIndexRebuilds", "events") in firing(), tmp_path)
            assert ("DuramenDamage", "events") not in firing()
            segment = next(log.rglob("*.log"))
            segment.write_bytes(segment.read_bytes().replace(b"value 50", b"value 5x"))
            check = subprocess.run([sys.executable, "-m", "duramen", "verify", log], check=False, capture_output=True)
            assert check.returncode == 1
            until(lambda: ("DuramenDamage", "events") in firing(), tmp_path)

"""`duramen convert`: what people see, exit codes, and that nothing is left when it is stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import duramen
from duramen.log.segments.log_builder import BUILDING
from tests.cli.running import FORMATS, Logs, Run, flip, segments

DURAMEN = [sys.executable, "-m", "duramen"]
WORDS = {"convert": ["--to", "durable-log", "--allow-loss", "timestamp"], "copy": []}


def source_options(logs: Logs, format: str) -> list[str]:
    return [word.replace("--option", "--source-option") for word in logs.options(format)]


def test_the_real_thing(cli: Run, logs: Logs, tmp_path: Path) -> None:
    log, new = logs.copy("durable-log"), tmp_path / "new"
    result = cli("convert", log, new, "--to", "keratin")
    assert (result.code, result.err) == (0, "")
    assert result.text.startswith(f"{log}: converted to {new}: ok: keratin, 3 segments, 300 records, ")
    assert cli("verify", new).code == 0
    assert cli("convert", log, new, "--to", "osiris").fails(2, str(new), "exists already")


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("target", [name for name in FORMATS if name != "fixed-slot"])
def test_every_pair(call: Run, logs: Logs, tmp_path: Path, source: str, target: str) -> None:
    log, new = logs.copy(source), tmp_path / "new"
    words = ["convert", log, new, "--to", target, *source_options(logs, source)]
    plan = call(*words, "--json", "--dry-run")
    assert plan.code in (0, 2)
    lost = [loss["field"] for loss in plan.json["losses"]]
    assert (plan.code == 2) == bool(lost)
    if lost:
        refused = call(*words)
        assert refused.fails(2, target, *(f"--allow-loss {field}" for field in lost))
        assert all(f"\n  {field} " in refused.text for field in lost)
    allowed = [word for field in lost for word in ("--allow-loss", field)]
    assert not new.exists()
    result = call(*words, "--json", *allowed)
    assert (result.code, result.err) == (0, "")
    assert result.json["records"] == plan.json["records"] == (299 if source == "osiris" else 300)
    assert [loss["field"] for loss in result.json["losses"]] == lost
    assert call("verify", new).code == 0


def test_the_table_of_losses(call: Run, logs: Logs, tmp_path: Path) -> None:
    log = logs.copy("keratin")
    result = call("convert", log, tmp_path / "new", "--to", "osiris", "--allow-loss", "key", "--dry-run")
    assert (result.code, result.err) == (2, "")
    lines = result.text.splitlines()
    assert lines[0].split() == ["would", "be", "lost", "in", "where", "allowed", "what", "it", "is"]
    rows = {line.split()[0]: line for line in lines[1:-2]}
    assert rows.keys() == {"key", "headers", "groups"}
    assert " yes " in rows["key"]
    assert " no " in rows["headers"]
    assert "300 records" in rows["key"]
    assert "2 files" in rows["groups"]
    assert lines[-2].startswith(f"{log}: would be converted to {tmp_path / 'new'}: osiris, 300 records")
    assert lines[-1].startswith("  dialect: document (")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keratin"]


def test_options_are_those_of_the_new_log(call: Run, logs: Logs, tmp_path: Path) -> None:
    log = logs.copy("durable-log")
    words = ("convert", log, tmp_path / "new", "--to", "osiris", "--option", "compression=zstd")
    assert call(*words, "--option", "segment_max_bytes=500", "--option", "chunk_max_records=10").code == 0
    with duramen.open(tmp_path / "new") as new:
        assert new.codec.options["compression"] == "zstd"
        assert len(new.segments) > 3


def test_damage(call: Run, logs: Logs, tmp_path: Path) -> None:
    log = logs.copy("durable-log")
    flip(segments(log)[1], 2000)
    words = ("convert", log, tmp_path / "new", "--to", "keratin")
    assert call(*words).fails(1, str(segments(log)[1]), "byte ", "--on-damage skip")
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / ("new" + BUILDING)).exists()
    result = call(*words, "--on-damage", "skip")
    assert result.code == 0
    assert "skipped, from offset" in result.text
    assert "299 records" in result.text


def test_wrong_usage(call: Run, logs: Logs, tmp_path: Path) -> None:
    log, new = logs.copy("durable-log"), tmp_path / "new"
    assert call("convert", log, new).fails(2, "--to")
    assert call("convert", log, new, "--to", "pulsar").fails(2, "pulsar")
    assert call("convert", log, new, "--to", "osiris", "--allow-loss", "colour").fails(2, "colour", "timestamp")
    assert call("convert", log, new, "--to", "osiris", "--on-damage", "hide").fails(2, "hide")
    assert call("convert", log, new, "--to", "osiris", "--option", "colour=red").fails(2, "colour")
    assert call("convert", log, log / "new", "--to", "osiris").fails(2, "inside the old one")
    assert call("convert", tmp_path / "nothing", new, "--to", "osiris").fails(3, "nothing")
    assert call("convert", log, tmp_path / "no" / "new", "--to", "osiris").fails(3, "no such directory")
    assert call("convert", log, new, "--to", "fixed-slot").fails(2, "values of one length")
    (tmp_path / "empty").mkdir()
    assert call("convert", tmp_path / "empty", new, "--to", "osiris").code == 2
    assert not new.exists()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough for a conversion that takes a while."""
    path = tmp_path_factory.mktemp("large") / "log"
    with duramen.open(path, "a", format="rustlog", durability="write") as log:
        for _ in range(8):
            log.append_batch([bytes(1 << 20)] * 8, durability="write")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["convert", "copy"])
def test_ctrl_c_leaves_nothing(large: Path, tmp_path: Path, verb: str) -> None:
    """Stopped at several moments: the new log is not there, or whole; and it can be started again."""
    new, building = tmp_path / "new", tmp_path / ("new" + BUILDING)
    words = [verb, str(large), str(new)] + (
        ["--to", "durable-log", "--allow-loss", "timestamp"] if verb != "copy" else []
    )
    stopped = 0
    for attempt in range(20):
        with subprocess.Popen([*DURAMEN, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            while not building.exists() and process.poll() is None:
                time.sleep(0.001)
            time.sleep(0.05 if attempt == 1 else 0)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        assert not building.exists()
        assert b"Traceback" not in err
        if process.returncode == 0:  # it was faster than the signal
            assert duramen.verify(new).records == 64
            shutil.rmtree(new)
            continue
        assert process.returncode == 130
        assert not new.exists()
        stopped += 1
        if stopped == 2:
            break
    assert stopped
    if not new.exists():
        subprocess.run([*DURAMEN, *words], check=True, stdout=subprocess.DEVNULL, timeout=120)
    assert duramen.verify(new).records == 64


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["convert", "copy"])
def test_a_killed_process_leaves_no_log(large: Path, tmp_path: Path, verb: str) -> None:
    """What it leaves is not at the path, and the next run clears it away."""
    new, building = tmp_path / "new", tmp_path / ("new" + BUILDING)
    words = [verb, str(large), str(new)] + (
        ["--to", "durable-log", "--allow-loss", "timestamp"] if verb != "copy" else []
    )
    with subprocess.Popen([*DURAMEN, *words], stdout=subprocess.DEVNULL) as process:
        while not building.exists() and process.poll() is None:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    assert not new.exists()
    assert building.exists()
    subprocess.run([*DURAMEN, *words], check=True, stdout=subprocess.DEVNULL, timeout=120)
    assert not building.exists()
    assert duramen.verify(new).ok

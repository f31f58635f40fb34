"""`duramen pipeline`: wrong usage is said before a JVM starts; one real run, with nothing on stderr but ours."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.cli.output import Output
from duramen.cli.pipeline.pipeline import app, show_profile
from tests.cli.running import Logs, Run, flip, segments
from tests.warm import spark_python

VERBS = ("verify", "profile", "export", "convert", "compact", "ingest", "replay", "run")


def test_no_other_verb_imports_spark() -> None:
    code = "import sys; from duramen.cli.main import main; main(['--help']); print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "False"


def test_every_verb_has_help(call: Run) -> None:
    assert {command.name for command in app.registered_commands} == set(VERBS)
    for verb in VERBS:
        result = call("pipeline", verb, "--help")
        assert result.code == 0
        assert "--master" in result.text
        assert "--json" in result.text
    for verb in ("export", "convert", "compact", "ingest", "replay", "run"):
        assert "--dry-run" in call("pipeline", verb, "--help").text


def test_wrong_usage_needs_no_jvm(call: Run, tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java"))
    nowhere = tmp_path / "nowhere"
    assert call("pipeline").fails(2, "missing command")
    assert call("pipeline", "dance").fails(2, "dance")
    for verb in ("verify", "profile"):
        assert call("pipeline", verb, nowhere).fails(3, "nowhere", "no such file")
    for verb in ("export", "replay", "compact"):
        assert call("pipeline", verb, nowhere, tmp_path / "out").fails(3, "nowhere", "no such file")
    assert call("pipeline", "convert", nowhere, tmp_path / "out", "--to", "keratin").fails(3, "nowhere")
    assert call("pipeline", "ingest", tmp_path / "out").fails(2, "--from is required")
    assert call("pipeline", "run", nowhere).fails(3, "nowhere")
    log = logs.copy("keratin")
    assert call("pipeline", "verify", log, "--conf", "nonsense").fails(2, "--conf", "K=V")
    assert call("pipeline", "export", log, tmp_path / "out", "--decode", "jsn").fails(2, "decode must be")
    assert call("pipeline", "profile", log, "--value-schema", "n int").fails(2, "without decode")
    assert call("pipeline", "convert", log, tmp_path / "new", "--to", "nothing").fails(2, "nothing")
    assert call("pipeline", "convert", log, log, "--to", "osiris").fails(2, "this exists already")
    assert call("pipeline", "compact", log, log).fails(2, "this exists already")
    (tmp_path / "bad.toml").write_text("mode = 'sometimes'\n")
    assert call("pipeline", "run", tmp_path / "bad.toml").fails(2, "mode: 'sometimes'")
    (tmp_path / "good.toml").write_text("[[steps]]\njob = 'verify'\npath = 'logs/orders'\n")
    assert "verify logs/orders" in call("pipeline", "run", tmp_path / "good.toml", "--dry-run").text


def test_no_java_is_said(call: Run, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert call("pipeline", "verify", logs.copy("keratin")).fails(3, "JAVA_HOME", "bin/java")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert call("pipeline", "verify", logs.copy("keratin")).fails(3, "Java 17", "openjdk")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert call("pipeline", "verify", logs.copy("keratin")).fails(3, "pyspark is not installed", "duramen[spark]")


def test_convert_names_the_dialect_and_what_was_skipped(
    call: Run, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job itself runs in this process, which converts to the same log."""
    log = logs.copy("durable-log")
    flip(segments(log)[0], 60)

    def convert(_spark: object, source: str, path: str, to: str, *, on_damage: str, **_options: Any) -> Any:
        return duramen.convert(source, path, to, on_damage=on_damage)

    monkeypatch.setattr("duramen.spark.jobs.convert", convert)
    monkeypatch.setattr("duramen.cli.pipeline.pipeline.running", lambda *_: nullcontext())
    result = call(
        "pipeline", "convert", log, tmp_path / "new", "--to", "osiris", "--on-damage", "skip",
    )  # fmt: skip
    assert result.code == 0, result.err
    text = result.text
    assert "dialect  document (" in text
    assert "`dialect=program`" in text
    assert "skipped" in text


def test_the_profile_of_an_empty_log(capsys: pytest.CaptureFixture[str]) -> None:
    log = {"first_offset": None, "last_offset": None, "gaps": 0, "missing_offsets": 0, "first_time": None}
    found = {
        "path": "logs/empty", "formats": ["keratin"], "segments": [], "records": 0, "duplicates": 0, "logs": [log],
        "decoded": None,
        "values": {"bytes": 0, "min_bytes": None, "max_bytes": None},
        "keys": {"distinct": 0, "distinct_is_exact": True, "missing": 0, "top": []},
    }  # fmt: skip
    show_profile(found, Output(), None)
    assert "offsets     none" in capsys.readouterr().out


@pytest.mark.spark
def test_a_real_run_says_what_the_other_verify_says(
    cli: Run, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", spark_python(tmp_path))
    log = logs.copy("keratin")
    flip(segments(log)[0], 900)
    result = cli("pipeline", "verify", log, "--json", "--master", "local[1]", module="duramen", timeout_s=300)
    assert (result.code, result.err) == (1, "")
    assert result.json == cli("verify", log, "--json").json

"""The act of `duramen demo` on Spark, in the session of the tests: the real verbs, jobs and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import duramen
from duramen.cli.demo import demo
from duramen.cli.main import app
from duramen.spark import local_session


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_the_act_on_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_session, "_own", [spark])  # as within a session that the command line started
    first, *_, on_spark = demo.read_acts()
    code = demo.run(app, str(tmp_path / "demo"), acts=[first, on_spark])
    text = capsys.readouterr().out
    assert code == 0, text
    assert text.count("✔") == 4
    for verb in ("verify", "ingest", "export", "profile"):
        assert f"\n$ duramen pipeline {verb} " in text
    assert "ingested: 1,500 rows written" in text  # Spark did send the first batch again
    assert "\n|walnut|" in text
    assert "<svg" in (tmp_path / "demo" / "profile.html").read_text()
    assert duramen.open(tmp_path / "demo" / "ingested").next_offset == 1_500
    assert spark.range(1).count() == 1  # the act leaves the session of others alone

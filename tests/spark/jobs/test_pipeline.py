"""Pipelines in a file: what is wrong is said with its key; what is right runs, once or as a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import duramen
from duramen.spark.jobs import pipeline

EXAMPLES = Path(__file__).parents[3] / "examples"
SOURCE = {"format": "duramen", "path": "in"}
SINK = {"format": "duramen", "path": "out"}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "steps: there is nothing to do"),
    ({"source": SOURCE}, "sink: is missing"),
    ({"sink": SINK}, "source: is missing"),
    ({"source": SOURCE, "sink": SINK, "mod": "once"}, "mod: is not known (did you mean mode?)"),
    ({"source": SOURCE, "sink": SINK, "mode": "never"}, "mode: 'never' is not known"),
    ({"source": {"path": "in"}, "sink": SINK}, "source.format: is missing"),
    ({"source": SOURCE, "sink": {"format": "duramen"}}, "sink.path: is missing"),
    ({"source": {**SOURCE, "option": {}}, "sink": SINK}, "source.option: is not known (did you mean options?)"),
    ({"source": SOURCE, "sink": SINK, "steps": [{"sql": 5}]}, "steps[0].sql: 5 is not text"),
    ({"source": SOURCE, "sink": SINK, "steps": [{"sql": "x", "job": "y"}]}, "steps[0]: has to have either"),
    ({"steps": [{"job": "verify"}]}, "steps[0].path: is missing"),
    ({"steps": [{"job": "dance", "path": "in"}]}, "steps[0].job: 'dance' is not known"),
    ({"steps": [{"job": "export", "path": "in"}]}, "steps[0].to: is missing"),
    ({"steps": [{"job": "profile", "path": "in", "duplicates": 1}]}, "steps[0].duplicates: 1 is not true or false"),
    ({"steps": [{"sql": "SELECT 1"}]}, "source: is missing"),
    ({"source": SOURCE, "sink": SINK, "mode": "stream"}, "checkpoint: is missing"),
    ({"source": SOURCE, "sink": SINK, "mode": "continuous", "checkpoint": "c"}, "every: is missing"),
    ({"source": SOURCE, "sink": SINK, "every": "1 second"}, "every: makes no sense"),
    (
        {
            "source": SOURCE,
            "sink": SINK,
            "mode": "stream",
            "checkpoint": "c",
            "steps": [{"job": "verify", "path": "p"}],
        },
        "steps[0].job: a stream cannot run a job",
    ),
]


@pytest.mark.parametrize(("tree", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_is_wrong_is_said_with_its_key(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(duramen.UsageError) as caught:
        pipeline.parse_pipeline(tree)
    assert str(caught.value).startswith(words)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(duramen.StorageError, match="no such file"):
        pipeline.read_pipeline(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_bytes(b"name = \xff")
    with pytest.raises(duramen.UsageError, match="not valid TOML"):
        pipeline.read_pipeline(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_examples_are_right(path: Path) -> None:
    assert pipeline.read_pipeline(str(path)).described()


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    with duramen.open(tmp_path / "logs" / "orders", "a", format="keratin", segment_max_bytes=4000) as log:
        for n in range(200):
            value = json.dumps({"order": n, "wood": ("oak", "ash")[n % 2], "boards": n % 9}).encode()
            log.append(value, key=b"%d" % (n % 7), timestamp=1_700_000_000_000 + n, durability="write")
    return tmp_path


def test_the_example_runs(spark: SparkSession, orders: Path) -> None:
    done = pipeline.run_pipeline(spark, pipeline.read_pipeline(str(EXAMPLES / "oak.toml")))
    assert (done.ok, done.rows) == (True, 100)
    with duramen.open(orders / "logs" / "oak") as log:
        values = [json.loads(record.value) for record in log]
    assert len(values) == 100
    assert all(value["boards"] is not None for value in values)


def test_a_stream_goes_on_where_it_ended(spark: SparkSession, orders: Path) -> None:
    plan = pipeline.parse_pipeline(
        {
            "mode": "stream",
            "checkpoint": "checkpoint",
            "source": {"format": "duramen", "path": "logs/orders"},
            "steps": [{"sql": "SELECT key, value FROM input WHERE cast(value AS string) LIKE '%oak%'"}],
            "sink": {"format": "duramen", "path": "logs/oak", "options": {"logFormat": "keratin"}},
        }
    )
    pipeline.run_pipeline(spark, plan)
    with duramen.open(orders / "logs" / "orders", "a") as log:
        log.append(b'{"wood": "oak"}')
    pipeline.run_pipeline(spark, plan)
    with duramen.open(orders / "logs" / "oak") as log:
        assert log.next_offset == 101


def test_jobs_as_steps(spark: SparkSession, orders: Path) -> None:
    steps = [
        {"job": "verify", "path": "logs/orders"},
        {"job": "profile", "path": "logs/orders", "html": "page.html", "duplicates": False},
        {"job": "export", "path": "logs/orders", "to": "parquet", "partition_by": "date", "decode": "json",
         "value_schema": "order bigint, wood string"},
        {"job": "compact", "path": "logs/orders", "to": "logs/compacted"},
        {"job": "convert", "path": "logs/compacted", "to": "logs/osiris", "format": "osiris", "allow_loss": ["key"]},
    ]  # fmt: skip
    done = pipeline.run_pipeline(spark, pipeline.parse_pipeline({"steps": steps}))
    assert [name for name, _ in done.lines] == ["verify", "profile", "export", "compact", "convert"]
    assert spark.read.parquet(str(orders / "parquet")).where("value.wood = 'ash'").count() == 100
    assert "<svg" in (orders / "page.html").read_text()
    assert duramen.open(orders / "logs" / "osiris").format == "osiris"


def test_an_error_names_the_step(spark: SparkSession, orders: Path) -> None:
    tree = {
        "source": {"format": "duramen", "path": "logs/orders"},
        "steps": [{"sql": "SELECT nonsense FROM input"}],
        "sink": SINK,
    }
    with pytest.raises(duramen.DuramenError, match=r"steps\[0\]\.sql: .*nonsense") as caught:
        pipeline.run_pipeline(spark, pipeline.parse_pipeline(tree))
    assert "\n" not in str(caught.value)
    tree["source"] = {"format": "duramen", "path": "nowhere"}
    tree["steps"] = []
    with pytest.raises(duramen.DuramenError, match=r"(source|sink): .*nowhere") as caught:
        pipeline.run_pipeline(spark, pipeline.parse_pipeline(tree))
    assert "\n" not in str(caught.value)

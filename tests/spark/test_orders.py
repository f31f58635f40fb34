"""`examples/orders` in small: the query fails between its two outputs, is started again, and duckdb agrees."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

pytest.importorskip("duckdb")
pytest.importorskip("deltalake")

from examples.orders.check import check
from examples.orders.generate import generate
from examples.orders.job import start_rejects, start_revenue

FORMATS = ["keratin", "osiris", "kafka"]


def stop_after_delta(point: str, batch: int) -> None:
    if point == "after delta" and batch == 1:
        raise RuntimeError("stopped between Delta and the topic")


@pytest.mark.slow
def test_orders_are_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    records = generate(tmp_path, 500_000, FORMATS)
    options = {"maxOffsetsPerTrigger": str(records // 2)}
    with pytest.raises(StreamingQueryException, match="stopped between Delta and the topic"):
        start_revenue(spark, tmp_path, FORMATS, stop_after_delta, **options).awaitTermination()
    start_revenue(spark, tmp_path, FORMATS, lambda point, batch: None, **options).awaitTermination()
    start_rejects(spark, tmp_path, FORMATS).awaitTermination()
    rows = check(tmp_path, FORMATS)
    assert rows["delta"] == rows["topic"] > 100
    assert rows["rejected"] > 0

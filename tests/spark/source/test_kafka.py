"""Kafka partitions through the Spark source."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.formats.kafka_logs import DATA, ISOLATIONS, truth

TXN = DATA / "clean/txngzip-0"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_rows_are_what_the_consumer_returned(spark: SparkSession, isolation: str) -> None:
    frame = spark.read.format("duramen").option("isolation", isolation).load(str(TXN))
    rows = frame.select("offset", "key", "value").orderBy("offset").collect()
    known = truth(TXN, isolation)
    assert [row.offset for row in rows] == [row["offset"] for row in known]
    assert [None if row.value is None else len(row.value) for row in rows] == [
        None if row["value"] is None else row["value"]["len"] for row in known
    ]
    assert frame.count() == len(known)

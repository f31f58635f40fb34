"""Act 7: the same logs on Spark: verify, an exactly-once stream into a log, Parquet, a query, a profile page.

All verbs share one session here; typed on the command line, each starts its own, which takes some seconds.
"""

from __future__ import annotations

import os

import duramen
from duramen.cli.demo.stage import SkippedError, Stage
from duramen.errors import DuramenError

TITLE = "On Spark"
MONDAY, TUESDAY = 1_000, 500
SCHEMA = "order bigint, wood string, boards int"


def play(stage: Stage) -> None:
    from duramen.spark import check_installed, find_java, session

    try:
        check_installed()
        find_java()
    except DuramenError as error:
        raise SkippedError(str(error)) from error
    stage.say("Spark starts on two cores, which takes some seconds. The verbs of this act share one session.")
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    with session("local[2]", conf) as spark:
        _verify(stage)
        _ingest(stage)
        stage.names["spark"] = spark
        _export(stage)
        _profile(stage)


def _verify(stage: Stage) -> None:
    stage.say("The same check as without Spark, as Spark tasks:")
    stage.duramen("pipeline", "verify", "logs/keratin")


def _ingest(stage: Stage) -> None:
    stage.say("A stream of files into a log. Monday's file exists, and the query runs once:")
    os.mkdir("incoming")
    _write("monday", MONDAY)
    words = ("pipeline", "ingest", "ingested", "incoming", "--from", "text", "--checkpoint", "checkpoint")
    stage.duramen(*words, "--format", "keratin")
    stage.say(
        "Suppose the driver died right after the commit, before Spark recorded it. Then Spark sends the batch again. "
        "Tuesday's file has arrived, too:"
    )
    stage.shell("rm -r checkpoint/commits")
    _write("tuesday", TUESDAY)
    stage.duramen(*words)
    stage.say("Spark sent that many rows. The log contains:")
    stage.duramen("verify", "ingested")
    with duramen.open("ingested") as log:
        values = [record.value for record in log]
    stage.show(
        f"Monday's batch was sent twice and stored once: {MONDAY + TUESDAY:,} records, no duplicates.",
        len(values) == len(set(values)) == MONDAY + TUESDAY,
    )


def _write(day: str, count: int) -> None:
    with open(f"incoming/{day}.txt", "w", encoding="utf-8") as file:
        file.writelines(f"{day}, order {number}\n" for number in range(count))


def _export(stage: Stage) -> None:
    stage.say("The orders as Parquet, with their JSON as columns; each run exports new records only:")
    words = ("pipeline", "export", "logs/keratin", "lake", "--incremental", "--decode", "json", "--schema", SCHEMA)
    stage.duramen(*words)
    stage.duramen(*words)
    stage.say("Any program that reads Parquet can query it:")
    stage.python("""
import os
orders = spark.read.parquet(os.path.abspath("lake")).select("value.*")
orders.groupBy("wood").sum("boards").orderBy("wood").show()
""")
    rows = stage.names["orders"].count()
    with duramen.open("logs/keratin") as log:
        stage.show(f"{rows:,} rows in Parquet, one for each record.", rows == log.next_offset)


def _profile(stage: Stage) -> None:
    stage.say("A profile of the log, as text and as a page with charts:")
    stage.duramen("pipeline", "profile", "logs/keratin", "--html", "profile.html")
    with open("profile.html", encoding="utf-8") as file:
        stage.show("A profile of the log with charts: profile.html", "<svg" in file.read())

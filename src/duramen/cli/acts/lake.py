"""Act 7: the same logs on Spark: verify, a stream into a log exactly once, Parquet, a query, a page with pictures.

One session serves all of it: each of these verbs starts one of its own when it is typed, which takes some seconds.
"""

from __future__ import annotations

import os

import duramen
from duramen.cli.acts.stage import SkippedError, Stage
from duramen.errors import DuramenError

TITLE = "On Spark"
MONDAY, TUESDAY = 1_000, 500
SCHEMA = "order bigint, wood string, boards int"


def play(stage: Stage) -> None:
    from duramen.spark.session import check_installed, find_java, session

    try:
        check_installed()
        find_java()
    except DuramenError as error:
        raise SkippedError(str(error)) from error
    stage.say("Spark starts, on two cores: some seconds. A verb that is typed starts its own; here they share one.")
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    with session("local[2]", conf) as spark:
        _verify(stage)
        _ingest(stage)
        stage.names["spark"] = spark
        _export(stage)
        _profile(stage)


def _verify(stage: Stage) -> None:
    stage.say("The same check as without Spark, in tasks; the first one waits until Spark is warm:")
    stage.duramen("pipeline", "verify", "logs/keratin")


def _ingest(stage: Stage) -> None:
    stage.say("A stream of files into a log. Monday's file is there, and the query runs once:")
    os.mkdir("incoming")
    _write("monday", MONDAY)
    words = ("pipeline", "ingest", "ingested", "incoming", "--from", "text", "--checkpoint", "checkpoint")
    stage.duramen(*words, "--format", "keratin")
    stage.say(
        "Say the driver died right after that, before Spark had noted that the batch was done. Then Spark sends the "
        "batch again. Tuesday's file has come meanwhile:"
    )
    stage.shell("rm -r checkpoint/commits")
    _write("tuesday", TUESDAY)
    stage.duramen(*words)
    stage.say("Those rows are what Spark has sent. What the log holds:")
    stage.duramen("verify", "ingested")
    with duramen.open("ingested") as log:
        values = [record.value for record in log]
    stage.show(
        f"Monday's batch was sent twice and is there once: {MONDAY + TUESDAY:,} records, no two the same.",
        len(values) == len(set(values)) == MONDAY + TUESDAY,
    )


def _write(day: str, count: int) -> None:
    with open(f"incoming/{day}.txt", "w", encoding="utf-8") as file:
        file.writelines(f"{day}, order {number}\n" for number in range(count))


def _export(stage: Stage) -> None:
    stage.say("The orders as Parquet, their JSON as columns; only what is new, however often it runs:")
    words = ("pipeline", "export", "logs/keratin", "lake", "--incremental", "--decode", "json", "--schema", SCHEMA)
    stage.duramen(*words)
    stage.duramen(*words)
    stage.say("And a query on it, by anything that reads Parquet:")
    stage.python("""
import os
orders = spark.read.parquet(os.path.abspath("lake")).select("value.*")
orders.groupBy("wood").sum("boards").orderBy("wood").show()
""")
    rows = stage.names["orders"].count()
    with duramen.open("logs/keratin") as log:
        stage.show(f"{rows:,} rows in Parquet, one for each record.", rows == log.next_offset)


def _profile(stage: Stage) -> None:
    stage.say("What does a log look like? As text, and as a page with pictures:")
    stage.duramen("pipeline", "profile", "logs/keratin", "--html", "profile.html")
    with open("profile.html", encoding="utf-8") as file:
        stage.show("A profile of the log, with pictures: profile.html", "<svg" in file.read())

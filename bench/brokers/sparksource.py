"""Spark's own Kafka source beside `spark.read.format("duramen")`: the same rows, one session on two cores. Duramen
reads logs of its own, and the partition of the topic itself in the directory of the broker, with Kafka's columns.

Kafka's connector has to be fetched from Maven Central, in the version of the Spark that is installed; where there is no
such release, the newest before it is taken, and the table says so. Every job asks for all columns of all rows and ends
in the ``noop`` sink.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import duramen
from bench.brokers import contest, install, kafka, kafkanode
from bench.brokers.contest import VALUE_BYTES, Contestant, Entry
from bench.brokers.ending import ends_on_sigterm
from bench.report import Table
from duramen.errors import DuramenError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "Spark reads 1 KiB messages, beside its Kafka source"
PEER = "Spark's Kafka source"
GROUP, CONNECTOR, TOKENS = "org.apache.spark", "spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"
TASKS = 2
TOPIC = "rows"


class Connector(NamedTuple):
    jars: list[Path]
    versions: str


def spark_kafka(scratch: Path, quick: bool) -> Iterator[Table]:
    count, rounds = (20_000, 1) if quick else (1_000_000, 3)
    try:
        if find_spec("pyspark") is None:
            raise install.NotRun("pyspark is not installed")
        install.package("confluent-kafka")
        found = connector()
        with ends_on_sigterm(), kafkanode.Node(scratch / "spark-kafka") as node:
            node.create_topic(TOPIC, max_message_bytes=str(kafka.BATCH_BYTES))
            kafka.publish(node, TOPIC, count, contest.WINDOW)
            yield _table(scratch, node, found, count, rounds)
    except install.NotRun as why:
        yield contest.not_run(TITLE, PEER, why)


def connector() -> Connector:
    """The jars that the installed Spark lacks for its Kafka source."""
    import pyspark

    main = install.newest(GROUP, CONNECTOR, pyspark.__version__)
    tokens = install.newest(GROUP, TOKENS, pyspark.__version__)
    wanted = [f"{GROUP}:{CONNECTOR}:{main}", f"{GROUP}:{TOKENS}:{tokens}"]
    found = install.jars("spark-kafka", wanted, exclusion=f"{GROUP}:{TOKENS}" if tokens != main else "")
    there = {_artifact(path) for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    lacking = [path for path in sorted(found.glob("*.jar")) if _artifact(path) not in there]
    versions = f"Spark {pyspark.__version__}, connector {main}"
    if tokens != main:
        versions += f" with the token provider {tokens}: Maven Central offers no newer one"
    return Connector(lacking, versions)


def _artifact(jar: Path) -> str:
    """A jar's name without its version."""
    return re.sub(r"-\d.*", "", jar.stem)


def _table(scratch: Path, node: kafkanode.Node, connector: Connector, count: int, rounds: int) -> Table:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from duramen.spark.local_session import session

    logs = {name: scratch / f"spark-{name}" for name in contest.FORMATS}
    for name, path in logs.items():
        with duramen.open(path, "a", format=name) as log:
            for batch in contest.batches(count):
                log.append_batch(batch)
    conf = {"spark.jars": ",".join(map(str, connector.jars)), "spark.driver.memory": "2g"}
    try:
        with session(f"local[{TASKS}]", conf) as spark:
            entries = [
                Entry(f"duramen {name}", 'format("duramen")', "", "", _reading(lambda p=path: _log(spark, p), count))
                for name, path in logs.items()
            ]
            directory = _reading(lambda: _directory(spark, node.data), count)
            entries.append(Entry("duramen kafka", "the broker's directory", "", "", directory))
            source = _reading(lambda: _topic(spark, node.address), count)
            entries.append(Entry(PEER, 'format("kafka")', "", "", source))
            results = contest.measure(TITLE, entries, count, rounds)
    except (DuramenError, PySparkException, Py4JError) as error:
        why = str(error).strip().splitlines()[0][:200]
        raise install.NotRun(f"{connector.versions}: {why}") from None
    finally:
        for path in logs.values():
            shutil.rmtree(path, ignore_errors=True)
    note = (
        f"{connector.versions}. Two tasks each. Duramen's tasks are Python processes that read files; Kafka's source "
        "is in the JVM and asks a broker."
    )
    return contest.table(f"{TITLE} ({count:,})", results, note)


def _log(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("duramen").option("minPartitions", TASKS).load(str(path))


def _directory(spark: SparkSession, root: Path) -> DataFrame:
    options = {"subscribe": TOPIC, "schema": "kafka", "minPartitions": str(TASKS)}
    return spark.read.format("duramen").options(**options).load(str(root))


def _topic(spark: SparkSession, address: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": address, "subscribe": TOPIC, "minPartitions": str(TASKS)}
    return spark.read.format("kafka").options(**options).load()


def _reading(frame: Callable[[], DataFrame], count: int) -> Contestant:
    @contextmanager
    def contestant() -> Iterator[Callable[[], None]]:
        yield lambda: frame().write.format("noop").mode("overwrite").save()
        total = frame().selectExpr("sum(length(value))").first()
        contest.check(count * VALUE_BYTES, 0 if total is None else int(total[0]))

    return contestant

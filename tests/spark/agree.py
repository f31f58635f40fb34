"""``python -m tests.spark.agree --cases 1000``: both engines read the same logs, and must agree.

A case is a log of any format (Duramen's own, another program's, a real broker's), sound or with one of the damages of
`tests.damage`, random options, and a random query. Rows, their order and the texts of errors are compared. A query with
conditions may find less damage in the JVM, which does not look outside of them; then Python must give the same, if it
is told the conditions, too (engine ``arrow``).
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import duramen
from duramen.record import SCHEMA
from duramen.spark import jar
from tests.conftest import DATA
from tests.damage.damages import Damage, Files, all_damages, bit_flips, cuts
from tests.damage.files import file_damages
from tests.damage.logs import FORMATS, OPTIONS, START_MS, Base, base_log, places
from tests.spark.conftest import CONF

ENGINES = ("python", "jvm")
COLUMNS = (
    "offset",
    "timestamp",
    "key",
    "value",
    "headers",
    "topic",
    "partition",
    "segment",
    "position",
    "timestampType",
)
BROKERS = sorted(path.parent for path in (DATA / "kafka").glob("*/*/truth.read_committed.jsonl"))
BROKERS += [DATA / "osiris" / name for name in ("subbatch", "tracked", "crash")]
SUMS = ("count(*)", "min(offset)", "max(offset)", "count(offset)")
DAMAGED = 0.5
MOST_CHANGES = 3


def outcome(make: Callable[[], Any]) -> Any:
    """What a query gives: rows, or the text of its error without what Spark says of the place."""
    try:
        return make()
    except (PySparkException, Py4JJavaError) as error:
        lines = [line for line in str(error).splitlines() if "duramen.errors" in line]
        return list(dict.fromkeys(line[line.index("duramen.errors") :] for line in lines)) or str(error)


def rows(frame: DataFrame) -> list[Any]:
    """The rows; times as numbers, because brokers store some that no date can show."""
    table = frame.toArrow()
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.int64()))
    return table.to_pylist()


# --- logs


def headed_log(name: str, **options: Any) -> Base:
    """A log of Duramen's with headers of many kinds, in several segments."""
    chance, written = random.Random(name), 0
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "log")
        with duramen.open(root, "a", format=name, **OPTIONS[name], **options) as log:
            for count in (7, 6, 8):
                log.append_batch(
                    pa.RecordBatch.from_pylist([headed(chance, written + n) for n in range(count)], HEADED)
                )
                written += count
                if written < 21:
                    log.seal()
        files = tree(root)
    return Base(name, True, files, dict.fromkeys(range(written), b""), tuple(places(name, files)))


HEADED = pa.schema([SCHEMA.field(name) for name in ("timestamp", "key", "value", "headers")])


def headed(chance: random.Random, number: int) -> dict[str, Any]:
    pairs = [("h", b"%d" % number), ("", b"x"), ("é", None), ("h", b""), ("", b"\xc1DH\x01")]
    headers = [{"key": key, "value": value} for key, value in chance.sample(pairs, chance.choice([0, 0, 1, 1, 2, 3]))]
    value = chance.choice([b"", None, b"record %04d" % number, b"record %04d" % number])
    time = (START_MS + number * 1000) * 1000
    return {"timestamp": time, "key": chance.choice([None, b"k", b""]), "value": value, "headers": headers or None}


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@cache
def bases() -> tuple[tuple[Base, str, tuple[Damage, ...]], ...]:
    """Sound logs, the name of their directory, and what may be done to them."""
    small = [base_log(name, sidecar) for name in FORMATS for sidecar in (False, True)]
    found = [(base, "log", (*all_damages(base), *file_damages(base))) for base in small]
    kafka = ({"compression": codec} for codec in ("none", "none", "gzip", "snappy", "lz4", "zstd"))
    headed = [headed_log("keratin"), headed_log("keratin"), *(headed_log("kafka", **options) for options in kafka)]
    found += [(base, "log", (*bit_flips(base), *cuts(base), *file_damages(base))) for base in headed]
    for path in BROKERS:
        found.append(
            (Base(path.parents[0].name if "osiris" in path.parts else "kafka", False, tree(path)), path.name, ())
        )
    return tuple(found)


def changed(files: Files, chance: random.Random) -> Files:
    """A few bytes of one file, or its end, are not what they were."""
    files = dict(files)
    path = chance.choice([path for path, content in files.items() if content])
    content = bytearray(files[path])
    for _ in range(chance.randrange(1, MOST_CHANGES + 1)):
        at = chance.randrange(len(content))
        content[at] ^= 1 << chance.randrange(8)
    files[path] = bytes(content[: chance.randrange(len(content))] if chance.random() < 0.2 else content)
    return files


def put(files: Files, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for path, content in files.items():
        if path.endswith("/"):
            (root / path).mkdir(parents=True, exist_ok=True)
            continue
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


# --- queries


def predicate(chance: random.Random, depth: int = 2) -> str:
    if depth and chance.random() < 0.5:
        parts = [predicate(chance, depth - 1) for _ in range(2)]
        return chance.choice(["({} AND {})", "({} AND {})", "({} OR {})", "(NOT {} AND {})"]).format(*parts)
    sign = chance.choice(["<", "<=", ">", ">=", "=", "<=>", "!="])
    number = chance.choice([-1, 0, 1, 6, 7, 13, 20, 21, 2**63 - 1, *chance.choices(range(25), k=9)])
    kind = chance.random()
    if kind < 0.5:
        return f"offset {sign} {chance.choice([str(number), f'{number}.0'])}"
    if kind < 0.6:
        return f"offset IN ({number}, {chance.randrange(25)}, NULL)"
    if kind < 0.8:
        return f"timestamp {sign} timestamp_millis({START_MS + min(number, 30) * chance.choice([1, 1000])})"
    if kind < 0.9:
        return f"partition {sign} {min(number, 5)}"
    return f"topic {sign} '{chance.choice(['log', 'kog', ''])}'"


class Query(NamedTuple):
    text: str
    run: Callable[[SparkSession, DataFrame], Any]
    is_narrowed: bool
    """Whether the JVM is told conditions, or aggregates that need no read, and so may find less damage."""

    def __repr__(self) -> str:
        return repr(self.text)


def queries(chance: random.Random, columns: list[str], *, is_verified: bool) -> Query:
    where, other = predicate(chance), predicate(chance)
    some = chance.sample(columns, chance.randrange(1, len(columns) + 1))
    kind = chance.choice(["all", "all", "some", "some", "where", "where", "aggregates", *SHAPES])
    if kind in SHAPES:
        shape, is_narrowed = SHAPES[kind]
        return Query(f"{kind}: {where} / {other}", lambda spark, df: shape(spark, df, where, other), is_narrowed)
    if kind == "all":
        return Query(kind, lambda _, df: rows(df), False)
    if kind == "some":
        return Query(f"{some}", lambda _, df: rows(df.select(*some)), False)
    if kind == "where":
        return Query(f"{some} {where}", lambda _, df: rows(df.where(where).select(*some)), True)
    sums = chance.sample(SUMS, chance.randrange(1, 4))
    return Query(f"{sums}", lambda _, df: rows(df.selectExpr(*sums)), not is_verified)


def cached(df: DataFrame, where: str, other: str) -> Any:
    few = df.where(where).cache()
    try:
        return few.count(), df.count(), few.where(other).count()
    finally:
        few.unpersist()


def view(spark: SparkSession, df: DataFrame, where: str, other: str) -> Any:
    df.createOrReplaceTempView("agree_view")
    return [
        spark.sql(f"SELECT count(*) FROM agree_view AS seen WHERE ({one})").collect() for one in (where, "true", other)
    ]


def subqueries(spark: SparkSession, df: DataFrame, where: str, other: str) -> Any:
    df.createOrReplaceTempView("agree_view")
    parts = [f"(SELECT max(offset) FROM agree_view AS seen WHERE ({one}))" for one in (where, "true", other, where)]
    return spark.sql(f"SELECT {', '.join(parts)}").collect()


def adaptive(spark: SparkSession, df: DataFrame, where: str, other: str) -> Any:
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        return joined(df, where, other), sorted(rows(df.where(other).groupBy("offset").count()), key=str)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")


def joined(df: DataFrame, where: str, other: str) -> Any:
    one, two = (
        df.select("offset", "partition", "topic", "timestamp").where(where).alias("a"),
        df.where(other).alias("b"),
    )
    return one.join(two, F.expr("a.offset = b.offset + 2")).count()


Shape = Callable[[SparkSession, DataFrame, str, str], Any]
SHAPES: dict[str, tuple[Shape, bool]] = {
    "filter, then all": (lambda _, df, where, other: (df.where(where).count(), rows(df)), True),
    "aggregates of a filter": (lambda _, df, where, other: rows(df.where(where).selectExpr(*SUMS[:3])), True),
    "union": (lambda _, df, where, other: rows(df.where(where).union(df.where(other))), True),
    "union with itself": (lambda _, df, where, other: rows(df.union(df)), False),
    "self-join": (lambda _, df, where, other: joined(df, where, other), True),
    "cached": (lambda _, df, where, other: cached(df, where, other), True),
    "view": (lambda spark, df, where, other: view(spark, df, where, other), True),
    "subqueries": (lambda spark, df, where, other: subqueries(spark, df, where, other), True),
    "adaptive": (lambda spark, df, where, other: adaptive(spark, df, where, other), True),
    "limit": (lambda _, df, where, other: rows(df.orderBy("offset").limit(3)), False),
}  # fmt: skip


# --- cases


class Case(NamedTuple):
    log: str
    damage: str
    options: dict[str, Any]
    query: Query | None
    """None: a stream."""
    is_damaged: bool


def some_options(chance: random.Random, base: Base, is_damaged: bool) -> dict[str, Any]:
    def maybe(options: dict[str, Any], likely: float = 0.25) -> dict[str, Any]:
        return options if chance.random() < likely else {}

    first = chance.randrange(22)
    found = {
        **maybe({"startingOffsets": chance.choice([first, first, -first])}),
        **maybe({"endingOffsets": chance.choice([first + chance.randrange(9), "latest"])}),
        **maybe({"startingTimestamp": START_MS + chance.randrange(12)}, 0.1),
        **maybe({"endingTimestamp": START_MS + chance.randrange(22)}, 0.1),
        **maybe({"onDamage": chance.choice(["skip", "report", "fail"])}, 0.4),
        **maybe({"verify": chance.choice(["true", "false"])}),
        **maybe({"isolation": "read_committed"}),
        **maybe({"failOnDataLoss": "false"}),
        **maybe({"minPartitions": 5, "maxRecordsPerPartition": 3}, 0 if is_damaged else 0.4),
    }
    if base.format == "fixed-slot" and not base.sidecar:
        found["record_size"] = OPTIONS["fixed-slot"]["record_size"]
    needed = ["offset", "timestamp", "topic", "partition"]
    more = [name for name in COLUMNS if name not in needed]
    columns = needed + chance.sample(more, chance.randrange(len(more) + 1))
    chance.shuffle(columns)
    return {**found, "columns": ",".join(columns)}


def one_case(chance: random.Random, root: Path) -> Case:
    """Puts a log there."""
    base, name, damages = chance.choice(bases())
    is_damaged, files, label = chance.random() < DAMAGED, dict(base.files), "sound"
    if is_damaged and damages and chance.random() < 0.7:
        damage = chance.choice(damages)
        files, label = damage.make(files), f"{damage.kind}, {damage.where}: {damage.label}"
    elif is_damaged:
        files, label = changed(files, chance), "bytes changed"
    put(files, root / "log")
    options = some_options(chance, base, is_damaged)
    if chance.random() < 0.1:
        options = {key: value for key, value in options.items() if not key.startswith("ending")}
        options |= {"maxOffsetsPerTrigger": chance.choice([5, 100])}
        query = None
    else:
        query = queries(chance, options["columns"].split(","), is_verified=options.get("verify") != "false")
    return Case(
        f"{base.format} {name} {'with' if base.sidecar else 'without'} sidecar", label, options, query, is_damaged
    )


def run(spark: SparkSession, root: Path, case: Case, engine: str) -> Any:
    options = {**case.options, "engine": engine}
    if case.query is None:
        return outcome(lambda: streamed(spark, root, options))
    query = case.query.run
    return outcome(lambda: query(spark, spark.read.format("duramen").options(**options).load(str(root / "log"))))


def streamed(spark: SparkSession, root: Path, options: dict[str, Any]) -> Any:
    found: list[Any] = []
    shutil.rmtree(root / "checkpoint", ignore_errors=True)
    stream = spark.readStream.format("duramen").options(**options).load(str(root / "log"))
    writer = stream.writeStream.foreachBatch(lambda batch, _: found.extend(rows(batch)))
    query = writer.option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return found


def disagreement(spark: SparkSession, root: Path, case: Case) -> tuple[Any, Any] | None:
    python, jvm = (run(spark, root, case, engine) for engine in ENGINES)
    if python == jvm:
        return None
    if case.is_damaged and case.query is not None and case.query.is_narrowed:
        python = run(spark, root, case, "arrow")
    return None if python == jvm else (python, jvm)


def check(spark: SparkSession, seed: int, numbers: range, found: Counter[str]) -> Iterator[str]:
    """What is wrong, case by case; each can be run again by its number."""
    with tempfile.TemporaryDirectory() as scratch:
        for number in numbers:
            root = Path(scratch)
            case = one_case(random.Random(f"{seed} {number}"), root)
            wrong = disagreement(spark, root, case)
            found["cases"] += 1
            found["damaged"] += case.is_damaged
            found["streams"] += case.query is None
            if wrong is not None:
                yield f"case {number}: {case}\n  python {wrong[0]!r:.2000}\n  jvm    {wrong[1]!r:.2000}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").appName("agree").config("spark.jars", str(jar()))
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    found: Counter[str] = Counter()
    wrong = 0
    sys.stdout.write(f"cases {given.first} to {given.first + given.cases - 1}, seed {given.seed}\n")
    for text in check(spark, given.seed, range(given.first, given.first + given.cases), found):
        wrong += 1
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"{dict(found)}, {wrong} disagree\n")
    spark.stop()
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())

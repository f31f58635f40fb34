"""`python -m bench.spark.engines`: what a read costs, by who reads: Python, the JVM from Python, or the JVM itself.

The same log beside itself as Parquet, in one session, taking turns: a full read, a count, two columns of five, and a
hundredth of the offsets. Beside it the floors: the kernel alone over the same bytes, and as many rows of two columns
from ``spark.range``. Figures are processor time of the JVM and of every Python process, and wall, as ratios to
Parquet's; the last column says which path was really taken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import rich.table
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

import duramen
from bench import logs
from bench.report import machine
from bench.spark.cpu import Cost, take_turns
from bench.spark.native import NativeLibrary
from duramen.spark import jar
from duramen.spark.local_session import session

ENGINES = {"Python source": "python", "JVM, Python reads": "arrow", "JVM": "jvm"}
PARQUET = "Parquet"
KERNEL, ROWS = "floor: the kernel alone", "floor: as many rows"
COLUMNS = "offset,timestamp,key,value,partition"
PAYLOADS = (1000, 100)
CONF = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "4"}

UNCHECKED = {"verify": "false"}
"""As Parquet reads: without comparing checksums."""


class Query(NamedTuple):
    title: str
    run: Callable[[DataFrame], object]
    options: Mapping[str, str] = MappingProxyType({})
    columns: tuple[str, ...] | None = None
    """What the kernel alone fills; None where its part is not measured."""


def _all(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _count(frame: DataFrame) -> None:
    frame.count()


def _two(frame: DataFrame) -> None:
    _all(frame.select("offset", "timestamp"))


def queries(count: int) -> list[Query]:
    first, end = count // 2, count // 2 + count // 100
    return [
        Query("full read", _all, columns=("offset", "timestamp", "key", "value")),
        Query("count", _count, columns=()),
        Query("count, verify=false", _count, UNCHECKED),
        Query("two of five columns", _two, columns=("offset", "timestamp")),
        Query("the same, verify=false", _two, UNCHECKED, ("offset", "timestamp")),
        Query("1 % of the offsets", lambda frame: _all(frame.where(f"offset >= {first} AND offset < {end}"))),
    ]


def _options(log: Path) -> dict[str, str]:
    is_slots = log.name.startswith("fixed-slot")
    return {"columns": COLUMNS} | ({"record_size": log.name.rpartition("-")[2]} if is_slots else {})


def _load(spark: SparkSession, log: Path, engine: str, more: Mapping[str, str]) -> DataFrame:
    return spark.read.format("duramen").options(**_options(log), engine=engine, **more).load(str(log))


def _run_rows(spark: SparkSession, count: int) -> None:
    _all(spark.range(0, count, 1, 16).selectExpr("id AS offset", "timestamp_micros(id) AS timestamp"))


def _run_here(spark: SparkSession, query: Query, log: Path, engine: str) -> None:
    query.run(_load(spark, log, engine, query.options))


def _run_parquet(spark: SparkSession, query: Query, parquet: Path) -> None:
    query.run(spark.read.parquet(str(parquet)))


def _path_of(frame: DataFrame) -> str:
    """Batches by reader, of the action that ran on this DataFrame."""
    plan = frame._jdf.queryExecution().executedPlan()
    while plan.children().size():
        plan = plan.children().apply(0)
    counts = [plan.metrics().apply(f"duramen{name}Batches").value() for name in ("Native", "Python")]
    return "{} native, {} Python".format(*counts)


def _arrow_mib(spark: SparkSession) -> float:
    """What all tasks together held of Arrow buffers at one time."""
    utils = spark._jvm.org.apache.spark.sql.util.ArrowUtils
    return utils.rootAllocator().getPeakMemoryAllocation() / (1 << 20)


def measure(
    spark: SparkSession,
    scratch: Path,
    name: str,
    payload_bytes: int,
    log_bytes: int,
    rounds: int,
    engines: Mapping[str, str],
    library: NativeLibrary,
) -> Iterator[tuple[str, dict[str, Cost], str]]:
    """For each query what each engine costs, and the path of the JVM's."""
    log, parquet = scratch / f"{name}-{payload_bytes}", scratch / f"parquet-{name}-{payload_bytes}"
    bare = scratch / "bare"
    logs.write(bare, name, payload_bytes, log_bytes // 4, 4)
    duramen.copy(bare, log, **({"record_size": payload_bytes} if name == "fixed-slot" else {}))  # with a sidecar
    shutil.rmtree(bare)
    _load(spark, log, "python", {}).write.option("compression", "none").parquet(str(parquet))
    count = spark.read.parquet(str(parquet)).count()
    probe = _load(spark, log, "jvm", {}).select("offset")
    probe.collect()
    path = _path_of(probe)
    for query in queries(count):
        contestants: dict[str, Callable[[], object]] = {
            contestant: partial(_run_here, spark, query, log, engine) for contestant, engine in engines.items()
        }
        contestants[PARQUET] = partial(_run_parquet, spark, query, parquet)
        if query.columns is not None:
            options = {**_options(log), **query.options}
            contestants[KERNEL] = partial(library.read, log, query.columns, options)
        if query.columns == ("offset", "timestamp"):
            contestants[ROWS] = partial(_run_rows, spark, count)
        for run in contestants.values():
            run()  # the JVM compiles what it runs often
        costs = take_turns(contestants, rounds)
        yield query.title, costs, path
    shutil.rmtree(log)
    shutil.rmtree(parquet)


def show(console: Console, title: str, found: Iterator[tuple[str, dict[str, Cost], str]], size_gb: float) -> None:
    table = rich.table.Table(title=title, title_justify="left")
    for number, column in enumerate(["", "", "CPU s/GB", "CPU, × Parquet", "wall, × Parquet", "batches"]):
        table.add_column(column, justify="left" if number < 2 else "right")
    for query, costs, path in found:
        base = costs[PARQUET]
        for contestant, cost in costs.items():
            table.add_row(
                query, contestant, f"{cost.cpu.median / size_gb:.2f}",
                f"{cost.cpu.median / max(base.cpu.median, 0.01):.2f}", f"{cost.wall.median / base.wall.median:.2f}",
                path if contestant == "JVM" else "",
            )  # fmt: skip
        table.add_section()
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.spark.engines", description=__doc__)
    parser.add_argument("--formats", nargs="+", choices=[*logs.FORMATS, "kafka"], default=["keratin"], metavar="FORMAT")
    parser.add_argument("--gb", type=float, default=1.0, help="bytes of values per log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", nargs="+", choices=ENGINES.values(), default=list(ENGINES.values()))
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    found = jar()
    if found is None:
        print("this installation has no jar: it was built without a JDK")
        return 1
    engines = {title: engine for title, engine in ENGINES.items() if engine in arguments.engines}
    console = Console(width=None if sys.stdout.isatty() else 130)
    scratch = Path(tempfile.mkdtemp(prefix="duramen-bench-engines-", dir=os.environ.get("TMPDIR")))
    try:
        library = NativeLibrary(found, scratch)
        console.print(machine(scratch), highlight=False)
        with session(arguments.master, {**CONF, "spark.jars": found}) as spark:
            for name in arguments.formats:
                for payload in PAYLOADS:
                    costs = measure(
                        spark, scratch, name, payload, int(arguments.gb * 1e9), arguments.rounds, engines, library
                    )  # fmt: skip
                    show(console, f"{name}, values of {payload} B", costs, arguments.gb)
                    console.print(f"Arrow memory of the JVM, at most so far: {_arrow_mib(spark):.0f} MiB\n")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

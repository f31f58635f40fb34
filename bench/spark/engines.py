"""`python -m bench.spark.engines`: what a read costs, by who reads: Python, the JVM from Python, or the JVM itself.

The same log beside itself as Parquet, in one session, taking turns: a full read, a count, two columns of five, and a
hundredth of the offsets. Figures are processor time of the JVM and of every Python process, and wall, as ratios to
Parquet's; the last column says which path was really taken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import rich.table
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from bench import logs
from bench.report import machine
from bench.spark.cpu import Cost, take_turns
from duramen.spark import jar
from duramen.spark.local_session import session

ENGINES = {"Python source": "python", "JVM, Python reads": "arrow", "JVM": "jvm"}
PARQUET = "Parquet"
COLUMNS = "offset,timestamp,key,value,partition"
PAYLOADS = (1000, 100)
CONF = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "4"}

Query = Callable[[DataFrame], object]


def _all(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def queries(count: int) -> dict[str, Query]:
    first, end = count // 2, count // 2 + count // 100
    return {
        "full read": _all,
        "count": lambda frame: frame.count(),
        "two of five columns": lambda frame: _all(frame.select("offset", "timestamp")),
        "1 % of the offsets": lambda frame: _all(frame.where(f"offset >= {first} AND offset < {end}")),
    }


def _load(spark: SparkSession, log: Path, engine: str) -> DataFrame:
    options = {"columns": COLUMNS, "engine": engine}
    if log.name.startswith("fixed-slot"):
        options["record_size"] = log.name.rpartition("-")[2]
    return spark.read.format("duramen").options(**options).load(str(log))


def _path_of(frame: DataFrame) -> str:
    """Batches by reader, of the action that ran on this DataFrame."""
    plan = frame._jdf.queryExecution().executedPlan()
    while plan.children().size():
        plan = plan.children().apply(0)
    counts = [plan.metrics().apply(f"duramen{name}Batches").value() for name in ("Native", "Python")]
    return "{} native, {} Python".format(*counts)


def measure(
    spark: SparkSession, scratch: Path, name: str, payload_bytes: int, log_bytes: int, rounds: int
) -> Iterator[tuple[str, dict[str, Cost], str]]:
    """For each query what each engine costs, and the path of the JVM's."""
    log, parquet = scratch / f"{name}-{payload_bytes}", scratch / f"parquet-{name}-{payload_bytes}"
    logs.write(log, name, payload_bytes, log_bytes // 4, 4)
    _load(spark, log, "python").write.option("compression", "none").parquet(str(parquet))
    count = spark.read.parquet(str(parquet)).count()
    probe = _load(spark, log, "jvm").select("offset")
    probe.collect()
    path = _path_of(probe)
    for title, query in queries(count).items():
        contestants: dict[str, Callable[[], object]] = {
            contestant: lambda engine=engine, query=query: query(_load(spark, log, engine))  # type: ignore[misc]
            for contestant, engine in ENGINES.items()
        }
        contestants[PARQUET] = lambda query=query: query(spark.read.parquet(str(parquet)))  # type: ignore[misc]
        for run in contestants.values():
            run()  # the JVM compiles what it runs often
        costs = take_turns(contestants, rounds)
        yield title, costs, path
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
    parser.add_argument("--formats", nargs="+", choices=logs.FORMATS, default=["keratin"], metavar="FORMAT")
    parser.add_argument("--gb", type=float, default=1.0, help="bytes of values per log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    found = jar()
    if found is None:
        print("this installation has no jar: it was built without a JDK")
        return 1
    console = Console(width=None if sys.stdout.isatty() else 130)
    scratch = Path(tempfile.mkdtemp(prefix="duramen-bench-engines-", dir=os.environ.get("TMPDIR")))
    try:
        console.print(machine(scratch), highlight=False)
        with session(arguments.master, {**CONF, "spark.jars": found}) as spark:
            for name in arguments.formats:
                for payload in PAYLOADS:
                    costs = measure(spark, scratch, name, payload, int(arguments.gb * 1e9), arguments.rounds)
                    show(console, f"{name}, values of {payload} B", costs, arguments.gb)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

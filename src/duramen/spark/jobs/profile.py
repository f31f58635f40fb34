"""Profile: what a log looks like. Sizes, rates over time, gaps, duplicates, keys and their skew, times out of order.

Tasks read their portion once and return sketches of a few hundred kilobytes at most, which the driver merges; no row
is returned. Exact: counts, bytes, extremes, gaps, steps back in time. Keys: exact up to 20,000 different ones, then
HyperLogLog (± 0.8 %) and counts with a stated error. Duplicates (the same key and value under another offset) are
counted through Spark's shuffle by a 64-bit hash of each row; that reads the log a second time and can be left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duramen.record import from_us
from duramen.spark.jobs.field_sketch import Fields
from duramen.spark.jobs.replay import absolute
from duramen.spark.jobs.scanning import JobScan, Portion, bound, decoding_of, plan_scan, read_options
from duramen.spark.jobs.sketches import Distinct, Heavy, Order, Sizes, SketchRates
from duramen.spark.jobs.task_runner import cancelling, distribute
from duramen.spark.progress import step
from duramen.values import Decoding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOP_KEYS = 20
COLUMNS = ("offset", "timestamp", "key", "value")


@dataclass
class Sketch:
    """The summary of some rows of one log."""

    log: str
    values: Sizes = field(default_factory=Sizes)
    keys: Sizes = field(default_factory=Sizes)
    keyless: int = 0
    empty: int = 0
    rates: SketchRates = field(default_factory=SketchRates)
    distinct: Distinct = field(default_factory=Distinct)
    heavy: Heavy = field(default_factory=Heavy)
    order: Order = field(default_factory=Order)
    fields: Fields = field(default_factory=Fields)

    def add(self, batch: pa.RecordBatch, decoding: Decoding | None = None) -> None:
        if decoding is not None:
            self.fields.add(decoding, batch)
        lengths = pc.fill_null(pc.binary_length(batch.column("value")), 0).to_numpy().astype(np.int64)
        self.values.add(lengths)
        self.empty += int((lengths == 0).sum())
        times = batch.column("timestamp")
        self.order.add(batch.column("offset").to_numpy(), times)
        known = times.is_valid().to_numpy(zero_copy_only=False)
        self.rates.add(times.drop_null().view(pa.int64()).to_numpy(), lengths[known])
        keys = batch.column("key")
        self.keyless += keys.null_count
        keys = keys.drop_null()
        if len(keys):
            self.keys.add(pc.binary_length(keys).to_numpy().astype(np.int64))
            self.distinct.add(keys)
            self.heavy.add(keys)

    def merge(self, other: Sketch) -> None:
        """Add what follows it in the same log, or what another log holds."""
        self.values.merge(other.values)
        self.keys.merge(other.keys)
        self.keyless += other.keyless
        self.empty += other.empty
        self.rates.merge(other.rates)
        self.distinct.merge(other.distinct)
        self.heavy.merge(other.heavy)
        self.fields.merge(other.fields)


@dataclass(frozen=True)
class Profile:
    """A log's profile. ``as_dict`` is what ``--json`` prints."""

    path: str
    formats: tuple[str, ...]
    segments: tuple[tuple[str, int, int], ...]
    """Path, base offset and size of each segment."""
    total: Sketch
    logs: tuple[tuple[str, Order], ...]
    duplicates: int | None
    is_decoded: bool = False

    @property
    def records(self) -> int:
        return self.total.values.count

    @property
    def distinct_keys(self) -> int:
        return self.total.heavy.kept if self.total.heavy.is_exact else self.total.distinct.estimate()

    def as_dict(self) -> dict[str, Any]:
        total = self.total
        return {
            "path": self.path,
            "formats": list(self.formats),
            "records": self.records,
            "segments": [{"path": p, "base_offset": base, "bytes": size} for p, base, size in self.segments],
            "values": _sizes(total.values),
            "empty_values": total.empty,
            "keys": {
                **_sizes(total.keys),
                "missing": total.keyless,
                "distinct": self.distinct_keys,
                "distinct_is_exact": total.heavy.is_exact,
                "top": [{"key": key, "records": count} for key, count in total.heavy.top(TOP_KEYS)],
                "top_error": total.heavy.error,
            },
            "rates": _rates(total.rates),
            "duplicates": self.duplicates,
            "decoded": total.fields.as_dict() if self.is_decoded else None,
            "logs": [{"path": path, **_order(order)} for path, order in self.logs],
        }


def profile(
    spark: SparkSession, path: str, *, duplicates: bool = True, format: str | None = None, **options: Any
) -> Profile:
    """Profile the log at ``path``, or with ``subscribe`` the partitions of topics. With ``decode`` and what belongs to
    it (`DecodeOptions`) also the fields of values and keys; one that does not decode is counted, if ``on_malformed``
    is not ``fail``."""
    decoding, options = decoding_of(options)
    reading = read_options(path, format, **options)
    scan = plan_scan(reading, COLUMNS, verify=False)
    decoding = bound(decoding, scan)
    work = partial(_sketch, decoding=decoding)
    sketches = [sketch for found in distribute(spark, work, scan.portions) for sketch in found]
    total = Sketch("")
    orders: dict[str, Order] = {piece.name: Order() for piece in scan.pieces}
    for sketch in sketches:
        total.merge(sketch)
        orders[sketch.log].join(sketch.order)
    repeated = None
    if duplicates:
        step("duplicates", scan.size_bytes)
        repeated = count_duplicates(spark, path, format, options)
    return Profile(
        path,
        tuple(sorted({piece.format for piece in scan.pieces})),
        _segments(scan),
        total,
        tuple(orders.items()),
        repeated,
        decoding is not None,
    )


def _sketch(portion: Portion, decoding: Decoding | None = None) -> list[Sketch]:
    """In an executor: the sketches of one portion, one for each stretch of a log."""
    sketches = []
    for split in portion.single_logs():
        sketch = Sketch(split.log_name)
        with split.named():
            for batch in split.batches():
                sketch.add(batch, decoding)
        sketches.append(sketch)
    return sketches


def count_duplicates(spark: SparkSession, path: str, format: str | None, options: dict[str, Any]) -> int:
    """Records whose key and value another record with a lower offset has, too. Only hashes are shuffled."""
    from pyspark.sql import functions as fn

    reader = spark.read.format("duramen").option("columns", "key,value").option("verify", "false")
    if format is not None:
        reader = reader.option("logFormat", format)
    for name, value in options.items():
        reader = reader.option(_source_name(name), _source_text(value))
    hashes = reader.load(absolute(path)).select(fn.xxhash64("key", "value").alias("hash"))
    with cancelling(spark):
        repeated = hashes.groupBy("hash").count().where("count > 1").agg(fn.sum(fn.col("count") - 1)).collect()
    return int(repeated[0][0] or 0)


def _source_name(name: str) -> str:
    """A job's keyword as the data source's option."""
    special = {"starting": "startingOffsets", "ending": "endingOffsets"}
    if name in special:
        return special[name]
    head, *rest = name.split("_")
    is_option = name == "record_size" or not rest
    return name if is_option else head + "".join(word.capitalize() for word in rest)


def _source_text(value: Any) -> str:
    if isinstance(value, tuple | list | frozenset):
        return ",".join(str(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _segments(scan: JobScan) -> tuple[tuple[str, int, int], ...]:
    found: dict[str, tuple[str, int, int]] = {}
    for portion in scan.portions:
        for piece in portion.split.pieces:
            found[piece.path] = (piece.path, piece.base or 0, piece.visible_bytes)
    return tuple(found.values())


# --- as plain data


def _sizes(sizes: Sizes) -> dict[str, Any]:
    return {
        "count": sizes.count,
        "bytes": sizes.total_bytes,
        "min_bytes": sizes.least,
        "max_bytes": sizes.most,
        "mean_bytes": round(sizes.total_bytes / sizes.count, 1) if sizes.count else None,
        "histogram": [
            {"from_bytes": (1 << power) >> 1, "to_bytes": (1 << power) - 1 if power else 0, "count": count}
            for power, count in enumerate(sizes.powers)
            if count
        ],
    }


def _rates(rates: SketchRates) -> dict[str, Any]:
    few = rates.narrowed(240)
    return {
        "bucket_seconds": few.width_s,
        "buckets": [
            {"time": _time(number * few.width_s * 1_000_000), "records": count, "bytes": total}
            for number, (count, total) in sorted(few.buckets.items())
        ],
    }


def _order(order: Order) -> dict[str, Any]:
    return {
        "first_offset": order.first_offset,
        "last_offset": order.last_offset,
        "gaps": order.gaps,
        "missing_offsets": order.missing,
        "largest_gaps": [list(gap) for gap in order.largest],
        "repeated_offsets": order.repeated,
        "first_time": _time(order.least_us),
        "last_time": _time(order.most_us),
        "without_time": order.timeless,
        "times_backwards": order.backwards,
        "largest_step_back_us": order.largest_step_us,
    }


def _time(us: int | None) -> str | None:
    when = from_us(us)
    return None if when is None else when.isoformat().replace("+00:00", "Z")

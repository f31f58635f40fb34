"""What the explorer does to a log: formats with options (`SETUPS`), and workloads generated from a seed (`WORKLOADS`).

A workload generates `Step`s one at a time, and sees where the log's next byte goes, so that it can aim at the
boundaries of sectors and pages. Nothing here opens a log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Position = Callable[[], int]
"""Where the next byte goes."""

SECTOR_BYTES = 512
PAGE_BYTES = 4096
PREALLOCATED_BYTES = 1500
"""For a workload that fills: a few commits fit, and some are too large."""
SYNC_INTERVAL_MS = 1000
SYNC_INTERVAL_RECORDS = 4


@dataclass(frozen=True)
class Setup:
    """A format with its options, and its special properties."""

    name: str
    format: str
    options: Mapping[str, Any] = field(default_factory=dict)
    record_size: int | None = None
    """Every value must have that many bytes."""
    overhead_bytes: int = 32
    """Size of a record without its value, for aiming."""
    segments: bool = True
    directory: str | None = None
    """Directory with the initial files of the log, written by another program."""

    def rolling(self) -> dict[str, Any]:
        """The options with segments so small that they roll often."""
        return {**self.options, "segment_max_bytes": 2500} if self.segments else dict(self.options)


SETUPS: dict[str, Setup] = {
    setup.name: setup
    for setup in (
        Setup("keratin", "keratin", {"index_stride_bytes": 200}, overhead_bytes=36),
        Setup("keratin-program", "keratin", {"index_stride_bytes": 200, "dialect": "program"}, overhead_bytes=36),
        Setup("durable-log", "durable-log", overhead_bytes=24),
        Setup("rustlog", "rustlog", {"index_interval_records": 3}, overhead_bytes=20),
        Setup("rustlog-12", "rustlog", {"index_interval_records": 3, "header_bytes": 12}, overhead_bytes=12),
        Setup("osiris", "osiris", overhead_bytes=52),
        Setup("osiris-v0", "osiris", {"chunk_version": 0, "chunk_max_records": 4}, overhead_bytes=52),
        Setup("osiris-gzip", "osiris", {"compression": "gzip", "sub_batch_records": 3}, overhead_bytes=63),
        Setup("osiris-tracked", "osiris", overhead_bytes=52, directory="osiris/tracked"),
        Setup("kafka", "kafka", {"index_stride_bytes": 200}, overhead_bytes=70),
        Setup("kafka-zstd", "kafka", {"compression": "zstd", "batch_max_bytes": 400}, overhead_bytes=82),
        Setup("fixed-slot", "fixed-slot", {"record_size": 100}, record_size=100, overhead_bytes=4, segments=False),
        Setup("fixed-slot-508", "fixed-slot", {"record_size": 508}, 508, overhead_bytes=4, segments=False),
    )
}


class Step(NamedTuple):
    """One thing to do with the log.

    ``append`` (each value on its own), ``batch``, ``group`` (several appends that are committed together), ``sync``,
    ``interval`` (time passes), ``seal``, ``reopen`` (closed first), ``kill`` (the process dies, the machine does not),
    ``crash``.
    """

    kind: str
    values: tuple[bytes, ...] = ()
    durability: str = "fsync"


@dataclass(frozen=True)
class Workload:
    """A distribution of steps."""

    name: str
    steps: int
    weights: Mapping[str, int]
    """Relative frequency of each kind of step."""
    writes: float = 0.3
    """The share of appends with the durability ``lazy``; the others have ``fsync``."""
    lazy: str = "write"
    aims: float = 0.5
    """The share of values whose size is chosen so that the record ends near a boundary."""
    most_bytes: int = 300
    blank: float = 0.2
    """The share of values that are empty or zeros."""
    rolls: bool = False
    fills: bool = False
    """Zeros are written ahead of the records."""

    def run(self, chance: random.Random, setup: Setup, position: Position) -> Iterator[Step]:
        kinds = [kind for kind in self.weights if setup.segments or kind != "seal"]
        for _ in range(self.steps):
            kind = chance.choices(kinds, [self.weights[kind] for kind in kinds])[0]
            count = {"append": 1, "batch": chance.randint(1, 7), "group": chance.randint(2, 4)}.get(kind, 0)
            values = []
            at = position()
            for _ in range(count):
                values.append(self._value(chance, setup, at))
                at += setup.overhead_bytes + len(values[-1])
            yield Step(kind, tuple(values), self.lazy if chance.random() < self.writes else "fsync")

    def _value(self, chance: random.Random, setup: Setup, position: int) -> bytes:
        size = setup.record_size
        if size is None:
            size = self._size(chance, setup, position)
        shape = chance.random()
        if not position:
            return chance.randbytes(max(size, 1))  # a log refuses a first record of zeros alone
        if shape < self.blank / 2 and setup.record_size is None:
            return b""
        if shape < self.blank:
            return bytes(size)
        if shape < self.blank + 0.1:
            return bytes(size - size // 3) + chance.randbytes(size // 3)
        return chance.randbytes(size)

    def _size(self, chance: random.Random, setup: Setup, position: int) -> int:
        """A few bytes, or enough to end the record near the end of a sector or a page."""
        if chance.random() >= self.aims:
            return chance.randint(0, self.most_bytes)
        boundary = PAGE_BYTES if chance.random() < 0.15 else SECTOR_BYTES
        end = position + setup.overhead_bytes
        target = (end // boundary + 1) * boundary + chance.randint(-setup.overhead_bytes - 2, 2)
        return max(0, target - end)


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("singles", 8, {"append": 1}, writes=0.0, fills=True),
        Workload("writes", 10, {"append": 6, "batch": 2, "sync": 1}, writes=0.85, blank=0.3),
        Workload(
            "intervals", 9, {"append": 6, "batch": 1, "group": 1, "interval": 2, "reopen": 1}, writes=0.9,
            lazy="interval", rolls=True, fills=True,
        ),
        Workload("batches", 5, {"batch": 1}, most_bytes=200),
        Workload("aligned", 9, {"append": 5, "batch": 1}, aims=1.0, blank=0.35, fills=True),
        Workload("groups", 5, {"group": 5, "append": 1}, writes=0.5),
        Workload("rolls", 6, {"append": 4, "batch": 4, "seal": 1}, rolls=True, fills=True, most_bytes=500),
        Workload("seals", 7, {"append": 5, "seal": 4, "reopen": 1}),
        Workload("reopens", 7, {"append": 6, "batch": 2, "reopen": 3, "seal": 1}, rolls=True),
        Workload("kills", 7, {"append": 6, "batch": 2, "kill": 3}, writes=0.6, fills=True),
        Workload("crashes", 7, {"append": 6, "batch": 3, "crash": 3, "seal": 1}, writes=0.5),
        Workload(
            "mixed", 10,
            {"append": 8, "batch": 4, "group": 2, "sync": 1, "seal": 1, "reopen": 1, "kill": 1, "crash": 1}, rolls=True,
            fills=True,
        ),
    )
}  # fmt: skip

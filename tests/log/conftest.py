"""Small logs of every format, written with the codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.formats import Format, make
from duramen.record import TIMESTAMP

RECORD_SIZE = 16
FORMATS = ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot", "kafka")
START_US = 1_700_000_000_000_000


CODEC_OPTIONS = {"fixed-slot": {"record_size": RECORD_SIZE}, "kafka": {"batch_max_bytes": 1}}


def codec(name: str) -> Format:
    """The format, with as few records in a batch as possible."""
    return make(name, **CODEC_OPTIONS.get(name, {}))


def options(name: str) -> dict[str, int]:
    return {"record_size": RECORD_SIZE} if name == "fixed-slot" else {}


def value(offset: int) -> bytes:
    return f"value {offset}".encode().ljust(RECORD_SIZE, b".")


def batch(fmt: Format, first: int, count: int) -> pa.RecordBatch:
    """Records whose value says their offset, one millisecond apart."""
    offsets = list(range(first, first + count))
    columns: dict[str, pa.Array] = {
        "offset": pa.array(offsets, pa.int64()),
        "value": pa.array([value(o) for o in offsets], pa.binary()),
    }
    if fmt.capabilities.timestamps:
        columns["timestamp"] = pa.array([START_US + o * 1000 for o in offsets], pa.int64()).view(TIMESTAMP.type)
    if fmt.capabilities.key:
        columns["key"] = pa.array([b"k%d" % (o % 3) if o % 2 else None for o in offsets], pa.binary())
    return pa.RecordBatch.from_pydict(columns)


@pytest.fixture(params=FORMATS)
def format_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a log: one segment for each count of records."""

    def make_log(name: str, *counts: int) -> Path:
        fmt = codec(name)
        if not fmt.capabilities.segments:
            counts = (sum(counts),)
        batches, first = [], 0
        for count in counts:
            batches.append(batch(fmt, first, count))
            first += count
        root = tmp_path / name
        root.mkdir()
        for relative, content in fmt.build(batches, START_US // 1000):
            path = root / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return root

    return make_log


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def create(root: Path) -> Iterator[Callable[..., duramen.WritableLog]]:
    """Open a log for append; whatever a test leaves open is closed."""
    opened: list[duramen.WritableLog] = []

    def open_log(name: str, **more: Any) -> duramen.WritableLog:
        log = duramen.open(root, "a", format=name, **options(name), **more)
        opened.append(log)
        return log

    yield open_log
    for log in opened:
        log.close()

"""A log of any size goes through every verb in steps: what comes out must not depend on how long they are.

The steps are made so short that a small log takes hundreds of them, in place of a log of many MiB.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import duramen
from duramen.formats import SCAN_BYTES, SCAN_RECORDS, Role, Rows, Segment, make
from duramen.formats import index as index_module
from duramen.formats.fixed_slot import FixedSlotSegment
from duramen.formats.frame import FrameSegment
from duramen.formats.kafka.segment import KafkaSegment
from duramen.formats.osiris.segment import OsirisSegment
from duramen.log.maintain import survivors
from duramen.log.maintain.compact import Compaction
from duramen.log.repair import apply
from duramen.log.repair.reindex import reindex
from duramen.log.segments import active_segment, crc
from duramen.log.transfer.loss_survey import FIELDS
from duramen.log.verify import ranges, threads, verify
from duramen.record import SCHEMA
from duramen.testing.run import clocked
from tests.log.conftest import FORMATS, START_US

RECORD_SIZE = 40
OPTIONS: dict[str, dict[str, Any]] = {
    "durable-log": {},
    "keratin": {"index_stride_bytes": 200},
    "rustlog": {"index_interval_records": 7},
    "osiris": {"chunk_max_records": 9, "chunk_max_bytes": 1000},
    "fixed-slot": {"record_size": RECORD_SIZE},
    "kafka": {"index_stride_bytes": 200},
}
SEGMENTS = (90, 70, 100)
STEPS = [(1, 1), (40, 900)]
"""The most records, and the most bytes, of a step."""


def _stepped(real: Callable[..., Rows], records: int, size_bytes: int) -> Callable[..., Rows]:
    def scan(self: Segment, cursor: Any, *, room: Any = None, **more: Any) -> Rows:
        more["max_records"] = min(more.get("max_records", SCAN_RECORDS), records)
        more["max_bytes"] = min(more.get("max_bytes", SCAN_BYTES), size_bytes)
        return real(self, cursor, **more)  # not into the room, which is filled as far as it goes

    return scan


@contextlib.contextmanager
def steps(records: int, size_bytes: int) -> Iterator[None]:
    small = {
        index_module: {"LATE_STEPS": 3, "LATE_ROWS": 40},
        active_segment: {"INDEX_FLUSH_BYTES": 48},
        apply: {"COPY_BYTES": 97},
        crc: {"SCAN_BYTES": 101},
        verify: {"THREADS_FROM_BYTES": 1},
        threads: {"PIECE_BYTES": 3000},
        ranges: {"STEP_BYTES": size_bytes, "STEP_RECORDS": records},
        survivors: {"SPILL_ROWS": 5},
    }
    with contextlib.ExitStack() as patches:
        for kind in (FrameSegment, OsirisSegment, FixedSlotSegment, KafkaSegment):
            patches.enter_context(mock.patch.object(kind, "scan", _stepped(kind.scan, records, size_bytes)))
        for module, values in small.items():
            for name, value in values.items():
                patches.enter_context(mock.patch.object(module, name, value))
        yield


def value(offset: int, name: str) -> bytes:
    text = b"%d " % offset * (1 + offset * 7 % 23)
    return text[:RECORD_SIZE].ljust(RECORD_SIZE, b".") if name == "fixed-slot" else text


def batch(name: str, first: int, count: int, *, gaps: bool = True) -> pa.RecordBatch:
    able = make(name, **OPTIONS[name]).capabilities
    every = [o for o in range(first, first + count) if not able.explicit_offsets or o % 31 or not gaps or o == first]
    columns: dict[str, Any] = {
        "offset": every,
        "timestamp": [START_US + o // 4 * 1000 for o in every] if able.timestamps else None,
        "key": [b"k%d" % (o % 17) if o % 5 else None for o in every] if able.key else None,
        "value": [value(o, name) for o in every],
        "headers": [[{"key": "h", "value": b"%d" % o}] if o % 3 else None for o in every] if able.headers else None,
    }
    fields = [SCHEMA.field(column) for column, rows in columns.items() if rows is not None]
    arrays = [pa.array(columns[field.name], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A log of each format: sealed segments, with offsets left out where the format can, and a sidecar."""
    made = {}
    for name in FORMATS:
        root = made[name] = tmp_path_factory.mktemp(name) / "log"
        fmt = make(name, **OPTIONS[name])
        starts = [sum(SEGMENTS[:number]) for number in range(len(SEGMENTS))]
        batches = [batch(name, first, count) for first, count in zip(starts, SEGMENTS, strict=True)]
        if not fmt.capabilities.segments:
            batches = [batch(name, 0, sum(SEGMENTS))]
        for relative, content in fmt.build(batches, START_US // 1000):
            (root / relative).parent.mkdir(parents=True, exist_ok=True)
            (root / relative).write_bytes(content)
        with clocked(), duramen.open(root, "a", format=name, **OPTIONS[name]) as log:
            if fmt.capabilities.tracking:
                log.cursor("reader").store(100)
            if fmt.capabilities.segments:
                log.seal()
            log.append_batch(batch(name, 1000, 40, gaps=False))
    return made


def tree(root: Path) -> dict[str, bytes]:
    """The files of a log; without what tells a time, or this process."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    found.pop(".duramen/lock", None)
    found.pop(".duramen/metrics.json", None)
    found.pop(".duramen/closed.json", None)  # with the times and numbers of files
    for name in (".duramen/log.json", ".duramen/compaction.json"):
        if name in found:
            found[name] = json.dumps(
                {key: part for key, part in json.loads(found[name]).items() if key not in ("created_ms", "at_us")}
            ).encode()
    return found


def both(tmp_path: Path, source: Path, act: Callable[[Path], Any], step: tuple[int, int]) -> tuple[Any, Any]:
    """What is left, and answered, after an act in long steps and in short ones, in the same place."""
    answers = []
    for context in (contextlib.nullcontext(), steps(*step)):
        root = tmp_path / "log"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(source, root)
        with clocked(), context:
            answer = act(root)
        answers.append((answer, tree(root)))
    return answers[0], answers[1]


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=STEPS)
def step(request: pytest.FixtureRequest) -> tuple[int, int]:
    found: tuple[int, int] = request.param
    return found


def _without_indexes(root: Path, name: str) -> None:
    fmt = make(name, **OPTIONS[name])
    for path in root.rglob("*"):
        known = fmt.classify(str(path.relative_to(root)))
        if known is not None and known.role in (Role.INDEX, Role.TIME_INDEX, Role.MANIFEST):
            path.unlink()


def test_reindex(tmp_path: Path, sources: dict[str, Path], name: str, step: tuple[int, int]) -> None:
    def act(root: Path) -> Any:
        _without_indexes(root, name)
        return reindex(str(root)).files

    long, short = both(tmp_path, sources[name], act, step)
    assert short == long
    kept = {path: content for path, content in tree(sources[name]).items() if path != "manifest.bin"}
    assert {path: content for path, content in short[1].items() if path != "manifest.bin"} == kept


def test_verify(tmp_path: Path, sources: dict[str, Path], name: str, step: tuple[int, int]) -> None:
    long, short = both(tmp_path, sources[name], duramen.verify, step)
    assert short == long
    assert long[0].ok


def test_recovery(tmp_path: Path, sources: dict[str, Path], name: str, step: tuple[int, int]) -> None:
    """A writer that finds no index, and neither watermark nor digests."""

    def act(root: Path) -> None:
        _without_indexes(root, name)
        for lost in ("watermark", "sealed.jsonl"):
            (root / ".duramen" / lost).unlink(missing_ok=True)
        with duramen.open(root, "a") as log:
            log.append_batch(batch(name, 2000, 50, gaps=False))
            if log.codec.capabilities.segments:
                log.seal()

    long, short = both(tmp_path, sources[name], act, step)
    assert short == long


def test_repair(tmp_path: Path, sources: dict[str, Path], name: str, step: tuple[int, int]) -> None:
    def act(root: Path) -> Any:
        fmt = make(name, **OPTIONS[name])
        path = root / fmt.segment_path(0)
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 0x40
        raw[len(raw) * 3 // 4] ^= 0x40
        path.write_bytes(raw)
        _without_indexes(root, name)
        plan = duramen.repair(root, plan_only=False)
        (root / ".duramen/repair.json").unlink(missing_ok=True)  # it says when
        return plan.kept_records, plan.losses

    long, short = both(tmp_path, sources[name], act, step)
    assert short == long


def test_copy(tmp_path: Path, sources: dict[str, Path], name: str) -> None:
    for until in ({}, {"until_offset": 133}):
        copies = []
        for context in (contextlib.nullcontext(), steps(3, 700)):
            target = tmp_path / "copy"
            shutil.rmtree(target, ignore_errors=True)
            with clocked(), context:
                duramen.copy(sources[name], target, **until)
            copies.append(tree(target))
        assert copies[0] == copies[1]
        if not until:
            assert {path for path in tree(sources[name]) if not path.startswith(".duramen")} <= copies[0].keys()


@pytest.mark.parametrize("to", FORMATS)
def test_convert(tmp_path: Path, sources: dict[str, Path], name: str, to: str) -> None:
    options = {key: part for key, part in OPTIONS[to].items() if key != "record_size"}
    made = []
    if to == "fixed-slot" and name != "fixed-slot":
        pytest.skip("values of many lengths")
    for step in (None, (3, 700)):
        target = tmp_path / "converted"
        shutil.rmtree(target, ignore_errors=True)
        with clocked(), contextlib.nullcontext() if step is None else steps(*step):
            duramen.convert(sources[name], target, to=to, allow_loss=tuple(FIELDS), **options)
            assert duramen.verify(target).ok
        with duramen.open(target) as log:
            made.append((tree(target), list(log.scan())))
    for files, records in made[1:]:
        assert records == made[0][1]
        assert files == made[0][0]


@pytest.mark.parametrize("name", ["keratin", "rustlog"])
def test_compact(tmp_path: Path, sources: dict[str, Path], name: str) -> None:
    def act(root: Path) -> Any:
        with duramen.open(root, "a") as log:
            log.seal()
            report = log.compact(Compaction(key="key" if name == "keratin" else "prefix:1", tombstone_delay_ms=0))
            assert report.changed
            return report

    long, short = both(tmp_path, sources[name], act, (3, 700))
    assert short == long

"""`log.chunks()`: chunks as they are stored, for replication; formats without chunks refuse it by name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import duramen
from duramen.errors import CorruptionError, UsageError
from tests.log.conftest import options


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two segments: chunks of three, three and one record, a tracking chunk; a snapshot, a chunk of two."""
    with duramen.open(tmp_path / "log", "a", format="osiris", chunk_max_records=3, epoch=7) as log:
        log.append_batch([b"%d" % number for number in range(7)])
        log.cursor("reader").store(3)
        log.seal()
        log.append_batch([b"a", b"b"])
    return tmp_path / "log"


def test_chunks_add_up_to_the_segments(path: Path) -> None:
    with duramen.open(path) as log:
        chunks = list(log.chunks())
        times = [log.read(chunk.first_offset).timestamp for chunk in chunks if chunk.kind == "user"]
    assert [(c.first_offset, c.last_offset, c.records, c.kind) for c in chunks] == [
        (0, 2, 3, "user"), (3, 5, 3, "user"), (6, 6, 1, "user"), (7, 7, 0, "tracking delta"),
        (8, 8, 0, "tracking snapshot"), (9, 10, 2, "user"),
    ]  # fmt: skip
    for segment in sorted(path.glob("*.segment")):
        raw = segment.read_bytes()
        stored = [chunk for chunk in chunks if chunk.path == str(segment)]
        assert raw[:8] + b"".join(chunk.data for chunk in stored) == raw.rstrip(b"\0").ljust(len(raw), b"\0")
        assert all(raw[chunk.position :].startswith(chunk.data) for chunk in stored)
    header = chunks[1].header
    assert (header["magic"], header["version"], header["chunk_type"]) == (5, 1, 0)
    assert (header["num_entries"], header["num_records"], header["epoch"], header["chunk_id"]) == (3, 3, 7, 3)
    assert [chunk.timestamp for chunk in chunks if chunk.kind == "user"] == times


@pytest.mark.parametrize(
    ("bounds", "firsts"),
    [((4,), [3, 6, 7, 8, 9]), ((4, 6), [3]), ((7, 8), [7]), ((11,), []), ((None, 1), [0]), ((0, 0), [])],
)
def test_bounds(path: Path, bounds: tuple[int | None, ...], firsts: list[int]) -> None:
    with duramen.open(path) as log:
        assert [chunk.first_offset for chunk in log.chunks(*bounds)] == firsts


def test_following(path: Path) -> None:
    with duramen.open(path, "a") as log:
        found = log.chunks(9, follow=True)
        assert next(found).first_offset == 9
        log.append(b"more")
        assert next(found).first_offset == 11
        log.cursor("reader").store(5)
        assert next(found).kind == "tracking delta"


def test_asyncio(path: Path) -> None:
    async def firsts() -> list[int]:
        async with duramen.aio.open(path) as log:
            return [chunk.first_offset async for chunk in log.chunks(6)]

    assert asyncio.run(firsts()) == [6, 7, 8, 9]


def test_damage_is_raised(path: Path) -> None:
    segment = min(path.glob("*.segment"))
    raw = bytearray(segment.read_bytes())
    with duramen.open(path) as log:
        second = list(log.chunks())[1]
    raw[second.position + 50] ^= 1
    segment.write_bytes(raw)
    with duramen.open(path) as log, pytest.raises(CorruptionError):
        list(log.chunks())


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "fixed-slot"])
def test_formats_without_chunks_refuse_by_name(tmp_path: Path, name: str) -> None:
    log = duramen.open(tmp_path / "log", "a", format=name, **options(name))
    with log, pytest.raises(UsageError, match=f"{name} does not store records in chunks"):
        log.chunks()

"""Indexes of sealed segments: what is missing or changed is noticed, and rebuilt from the records."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.formats import make
from duramen.log.recover import RecoveryCase
from duramen.log.repair import reindex
from duramen.metrics import process as process_counters
from duramen.sidecar import SealedList, Sidecar, read_writer_metrics
from tests.log.conftest import value
from tests.log.writing import SEGMENTED, codes, content, values

SEGMENTS, EACH = 4, 30
OPTIONS = {
    "keratin": {"index_stride_bytes": 100},
    "rustlog": {"index_interval_records": 4},
    "kafka": {"index_stride_bytes": 100},
}


def fill(root: Path, name: str) -> list[Path]:
    """A log of sealed segments; the paths of their indexes, in order."""
    with duramen.open(root, "a", format=name, **OPTIONS.get(name, {})) as log:
        for number in range(SEGMENTS):
            for offset in range(EACH):
                log.append(value(number * EACH + offset), durability="write")
            log.seal()
    return indexes(root, name)


def indexes(root: Path, name: str) -> list[Path]:
    found = (file for file in root.rglob("*") if file.is_file() and ".duramen" not in file.parts)
    known = make(name)
    names = {file: known.classify(str(file.relative_to(root))) for file in found}
    of_role = sorted(file for file, of in names.items() if of is not None and "index" in of.role.value)
    return of_role[: SEGMENTS * (2 if name in ("keratin", "kafka") else 1)]


def steps(log: duramen.WritableLog) -> list[str]:
    return sorted(step.path for step in log.recovery if step.case == RecoveryCase.INDEX)


def copies(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".duramen").glob("quarantine/**/*") if path.is_file())


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda _: None,
    "empty": lambda _: b"",
    "short": lambda raw: raw[:-5],
    "long": lambda raw: raw + bytes(32),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", SEGMENTED)
def test_a_wrong_size_is_noticed_at_open(tmp_path: Path, name: str, damage: str) -> None:
    found = fill(tmp_path, name)
    wrong, before = found[1], {path: path.read_bytes() for path in found}
    changed = DAMAGES[damage](before[wrong])
    wrong.unlink() if changed is None else wrong.write_bytes(changed)
    count = process_counters.index_rebuilds
    with duramen.open(tmp_path, "a") as log:
        assert steps(log) == [str(wrong.relative_to(tmp_path))]
        assert process_counters.index_rebuilds == count + 1
        log.append(value(SEGMENTS * EACH))
    assert {path: path.read_bytes() for path in found} == before
    assert bool(copies(tmp_path)) == (damage == "long"), "what the records do not say is kept"
    assert content(tmp_path) == values(0, SEGMENTS * EACH + 1)
    assert codes(tmp_path) == []
    with duramen.open(tmp_path, "a") as log:
        assert steps(log) == []


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_wrong_byte_is_noticed_when_the_index_is_used(tmp_path: Path, name: str) -> None:
    found = fill(tmp_path, name)
    wrong = next(path for path in found if path.suffix not in (".tidx", ".timeindex") and str(EACH) in path.name)
    before = wrong.read_bytes()
    wrong.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with duramen.open(tmp_path) as reader:
        assert reader.read(EACH + 7).value == value(EACH + 7)
    assert wrong.read_bytes() != before, "a reader changes nothing"
    with duramen.open(tmp_path, "a", timer=False) as log:
        assert steps(log) == []
        assert log.read(EACH + 7).value == value(EACH + 7)
        log.run_due()
        assert steps(log) == [str(wrong.relative_to(tmp_path))]
        assert wrong.read_bytes() == before
        assert copies(tmp_path)
        assert log.read(EACH + 8).value == value(EACH + 8)
        log.run_due()
        assert len(steps(log)) == 1
        published = read_writer_metrics(PosixDisk(), str(tmp_path))
        assert published is not None
        assert published.counters["index_rebuilds"] == 1, "at once, for processes that watch the log"
    assert codes(tmp_path) == []


def test_the_timer_rebuilds_it(tmp_path: Path) -> None:
    wrong = fill(tmp_path, "keratin")[0]
    before = wrong.read_bytes()
    wrong.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with duramen.open(tmp_path, "a") as log:
        log.read(7)
        seen = None
        while not steps(log):
            seen = log.wait(10, seen)
        assert wrong.read_bytes() == before


@pytest.mark.parametrize("name", SEGMENTED)
def test_nothing_is_read_at_open_where_sizes_agree(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, name)
    disk = PosixDisk()
    mapped: list[str] = []
    whole = PosixDisk.map
    monkeypatch.setattr(PosixDisk, "map", lambda self, path: (mapped.append(path), whole(self, path))[1])
    monkeypatch.setattr(SealedList, "_read", lambda _: pytest.fail("the whole list was read"))
    with duramen.open(tmp_path, "a", disk=disk) as log:
        assert steps(log) == []
    sealed = {segment.path for segment in duramen.open(tmp_path).segments[:-2]}
    assert not sealed & set(mapped)


def test_a_damaged_segment_keeps_its_index(tmp_path: Path) -> None:
    wrong = fill(tmp_path, "keratin")[0]
    segment = wrong.with_suffix(".log")
    raw = bytearray(segment.read_bytes())
    raw[-10] ^= 1
    segment.write_bytes(raw)
    wrong.write_bytes(wrong.read_bytes()[:-16])
    before = wrong.read_bytes()
    with duramen.open(tmp_path, "a") as log:
        assert steps(log) == []
    assert wrong.read_bytes() == before


def test_a_list_of_an_earlier_version(tmp_path: Path) -> None:
    """It does not say how large the indexes are: only a missing one is noticed."""
    first, second, *_ = fill(tmp_path, "durable-log")
    known = SealedList(PosixDisk(), str(tmp_path))
    known.replace([replace(entry, sealed_ms=None, indexes=None) for entry in known.entries().values()])
    first.write_bytes(first.read_bytes()[:-16])
    second.unlink()
    with duramen.open(tmp_path, "a") as log:
        assert steps(log) == [second.name]
        assert [record.value for record in log] == values(0, SEGMENTS * EACH)


@pytest.mark.parametrize("name", ["keratin", "rustlog"])
def test_other_index_options_are_stored_with_the_new_index(tmp_path: Path, name: str) -> None:
    found = fill(tmp_path, name)
    found[0].unlink()
    more = {"keratin": {"index_stride_bytes": 1000}, "rustlog": {"index_interval_records": 9}}[name]
    with duramen.open(tmp_path, "a", **more) as log:
        assert len(steps(log)) == (2 if name in ("keratin", "kafka") else 1), (
            "both indexes of Keratin have another size"
        )
    with duramen.open(tmp_path, "a") as log:
        assert steps(log) == []
        assert log.read(EACH - 1).value == value(EACH - 1)
        log.run_due()
        assert steps(log) == []


@pytest.mark.parametrize("name", SEGMENTED)
def test_reindex_and_repair_keep_the_list_right(tmp_path: Path, name: str) -> None:
    found = fill(tmp_path, name)
    found[0].write_bytes(b"rubbish")
    duramen.repair(tmp_path, plan_only=False)
    with duramen.open(tmp_path, "a") as log:
        assert steps(log) == []
    reindex(str(tmp_path), **{"keratin": {"index_stride_bytes": 1000}}.get(name, {}))
    with duramen.open(tmp_path, "a") as log:
        assert steps(log) == []


def test_finding_one_line_of_many(tmp_path: Path) -> None:
    sidecar = Sidecar(PosixDisk(), str(tmp_path))
    os.mkdir(tmp_path / ".duramen")
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append(b"v")
        log.seal()
        (entry,) = log.tail.sidecar.sealed().values()
    for count in (0, 1, 2, 3, 100):
        entries = [replace(entry, base=10 * number, last_offset=10**number % 10**9) for number in range(count)]
        sidecar.replace_sealed(entries)
        listed = SealedList(PosixDisk(), str(tmp_path))
        assert [listed.find(10 * number) for number in range(count)] == entries
        assert [listed.find(10 * number + 1) for number in range(-1, count)] == [None] * (count + 1)

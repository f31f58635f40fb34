"""Files of a log as wholes, under other names, twice, empty, or from another log: a slice of `python -m
tests.damage.files`, which runs them all."""

from __future__ import annotations

import posixpath
from pathlib import Path

import pytest

from duramen.consumers.log import ConsumableWritableLog
from duramen.disk.vfs import Kind
from duramen.errors import CorruptionError, StorageError
from duramen.formats import Role
from duramen.log.read.log import Log
from duramen.log.repair import RepairAction, repair_log, undo_repair
from duramen.log.repair import claims as claims_module
from duramen.log.repair import repair as repair_module
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.testing.run import clocked, disk_of
from duramen.testing.simulated_disk import SimulatedDisk
from tests.damage.damages import Damage
from tests.damage.files import COUNTS, cases, file_damages, rows
from tests.damage.logs import FORMATS, OPTIONS, RECORD_SIZE, ROOT, base_log, options_for, places, read, tree, value
from tests.damage.matrix import run

SLICE = 24
TRAILER_LENGTH_AT = 40
"""In the header of an Osiris chunk."""
SEGMENTED = [name for name in FORMATS if name != "fixed-slot"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_slice_of_all_cases(name: str) -> None:
    broken = [f"{row}: {problem}" for row in rows(name, SLICE, seed=3) for problem in row.problems]
    assert not broken, "\n".join(broken[:20])


def test_the_record_says_how_many() -> None:
    record = (Path(__file__).parents[2] / "RELIABILITY.md").read_text(encoding="utf-8")
    slices, totals = (sum(len(list(cases(name, budget, 3))) for name in FORMATS) for budget in (SLICE, None))
    assert f"| {slices} of {totals:,} | `tests/damage/test_files.py` |" in record


def damage_of(name: str, sidecar: bool, kind: str, nth: int = 0) -> Damage:
    return [one for one in file_damages(base_log(name, sidecar, COUNTS)) if one.kind == kind][nth]


@pytest.mark.parametrize("name", SEGMENTED)
@pytest.mark.parametrize("kind", ["swapped", "cycled", "reversed", "shifted up"])
def test_permuted_names_lose_nothing(name: str, kind: str) -> None:
    base = base_log(name, False, COUNTS)
    row = run(base, damage_of(name, False, kind))
    assert not row.problems
    assert (row.kept, row.lost) == (len(base.records), 0)


def damaged_disk(name: str, sidecar: bool, kind: str) -> SimulatedDisk:
    base = base_log(name, sidecar, COUNTS)
    files = damage_of(name, sidecar, kind).make(dict(base.files))
    return disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})


def apply(disk: SimulatedDisk, name: str) -> None:
    with clocked():
        repair_log(ROOT, plan_only=False, format=name, disk=disk, **options_for(disk, name))


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_name_taken_after_the_plan_stops_the_repair(name: str) -> None:
    """A file that appears in the place of one that has its temporary name is not replaced, and not removed."""
    disk = damaged_disk(name, True, "reversed")
    before = tree(disk)
    plan = repair_log(ROOT, format=name, disk=disk)
    renames = [step for step in plan.steps if step.action == RepairAction.RENAME]
    taken = posixpath.join(ROOT, renames[-1].target or "")

    def intrude(_number: int, _operation: str) -> None:
        if disk.kind(taken) == Kind.MISSING:
            disk.on_operation = None
            file = disk.create(taken)
            file.write(0, b"came meanwhile")
            file.close()

    disk.on_operation = intrude
    with pytest.raises(StorageError) as caught:
        apply(disk, name)
    assert "put back as it was" not in str(caught.value)
    assert tree(disk)[posixpath.relpath(taken, ROOT)] == b"came meanwhile"
    missing = [path for path, content in before.items() if content not in tree(disk).values()]
    assert not missing, "every content is still in the log's directory"
    disk.rename_new(taken, f"{ROOT}/came-meanwhile")
    undo_repair(ROOT, disk=disk, format=name)
    assert {path: content for path, content in tree(disk).items() if path in before} == before
    assert tree(disk)["came-meanwhile"] == b"came meanwhile"
    apply(disk, name)
    assert read(disk, name) == base_log(name, True, COUNTS).records


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_result_that_is_not_what_the_plan_says_is_put_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = damaged_disk(name, True, "swapped")
    before = tree(disk)
    monkeypatch.setattr(claims_module, "held_by", lambda _segment: [])
    with pytest.raises(CorruptionError, match="differs from its plan") as caught:
        apply(disk, name)
    assert caught.value.hint == "everything was put back as it was"
    assert tree(disk) == before


def test_what_is_called_put_back_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file is not as it was, that is said, and `--undo` stays possible."""
    disk = damaged_disk("durable-log", True, "swapped")
    monkeypatch.setattr("duramen.log.repair.repair.check_claims", _meddle(disk))
    with pytest.raises(CorruptionError) as caught:
        apply(disk, "durable-log")
    assert "not everything could be put back" in (caught.value.hint or "")
    assert "write.lock" in (caught.value.hint or "")
    undo_repair(ROOT, disk=disk)


def _meddle(disk: SimulatedDisk) -> object:
    def check(*_arguments: object) -> None:
        disk.create(f"{ROOT}/write.lock").close()
        raise CorruptionError("not what the plan says")

    return check


def test_offsets_that_no_file_holds_are_reported_where_compaction_may_have_removed_them() -> None:
    disk = damaged_disk("rustlog", False, "shifted down, first overwritten")
    disk.remove(posixpath.join(ROOT, f"{0:020}.index"))
    plan = repair_log(ROOT, format="rustlog", disk=disk, **options_for(disk, "rustlog"))
    assert not plan.losses
    assert plan.unexplained == [(0, COUNTS[0] - 1)]


@pytest.mark.parametrize("name", ["durable-log", "rustlog"])
def test_offsets_that_an_index_names_and_no_file_holds_are_lost(name: str) -> None:
    disk = damaged_disk(name, False, "shifted down, first overwritten")
    plan = repair_log(ROOT, format=name, disk=disk, **options_for(disk, name))
    assert [(loss.first, loss.last) for loss in plan.losses] == [(0, COUNTS[0] - 1)]
    assert not plan.unexplained


@pytest.mark.parametrize("name", SEGMENTED)
@pytest.mark.parametrize("kind", ["shifted down, first overwritten", "emptied", "cut to its header"])
def test_offsets_of_an_overwritten_first_segment_are_lost(name: str, kind: str) -> None:
    """Neither retention nor an operator removed them: a file still has the name of the segment that the list names."""
    if kind == "cut to its header" and name not in ("keratin", "osiris"):
        pytest.skip("no file header")
    disk = damaged_disk(name, True, kind)
    plan = repair_log(ROOT, format=name, disk=disk, **options_for(disk, name))
    assert [(loss.first, loss.last) for loss in plan.losses] == [(0, COUNTS[0] - 1)]
    assert not plan.unexplained


@pytest.mark.parametrize("name", FORMATS)
def test_records_appended_after_a_truncation_survive_a_repair(name: str) -> None:
    """Damage, an explicit ``on_damage="truncate"``, new records: a repair later keeps them."""
    base = base_log(name, True)
    last = base.places[-3]
    raw = bytearray(base.files[last.path])
    raw[(last.start + last.end) // 2] ^= 0x10
    files = {**base.files, last.path: bytes(raw)}
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})
    new: dict[int, bytes] = {}
    with clocked(), WritableLog(ROOT, disk=disk, on_damage="truncate") as log:
        for number in range(3):
            content = b"new %d" % number
            new[log.append(content.ljust(RECORD_SIZE, b"."))] = content.ljust(RECORD_SIZE, b".")
    apply(disk, name)
    found = read(disk, name)
    assert {offset: found.get(offset) for offset in new} == new
    kept = b"".join(content for path, content in tree(disk).items() if "/quarantine/" in path)
    assert bytes(raw[last.start : last.end]) in kept + tree(disk)[last.path]


@pytest.mark.parametrize("bit", [8, 9, 10])
def test_records_appended_after_a_cut_within_a_trailer_survive_a_repair(bit: int) -> None:
    """A flipped bit of an Osiris trailer's length takes in the chunks after it. They are cut off as damage, and others
    get their offsets: a repair that finds the old ones in the trailer must not prefer them."""
    disk = disk_of({ROOT + "/": b""})
    with clocked():
        log = WritableLog(ROOT, format="osiris", disk=disk)
        for number in range(13):
            log.append(b"old %d" % number * 12)
        killed = tree(disk)
        log.close()
    (path,) = (path for path in killed if path.endswith(".segment"))
    raw = bytearray(killed[path])
    at = 8 + TRAILER_LENGTH_AT
    raw[at : at + 4] = (int.from_bytes(raw[at : at + 4], "big") ^ 1 << bit).to_bytes(4, "big")
    files = {**killed, path: bytes(raw)}
    disk = disk_of({posixpath.join(ROOT, name): content for name, content in files.items()})
    with clocked(), WritableLog(ROOT, disk=disk, on_damage="truncate") as log:
        new = {log.append(b"new %d" % number): b"new %d" % number for number in range(3)}
    apply(disk, "osiris")
    found = read(disk, "osiris")
    assert {offset: found.get(offset) for offset in new} == new


def test_a_file_of_other_offsets_that_holds_no_record() -> None:
    """Of two exchanged segments, one is cut after a chunk of cursors: nothing else holds the offset of that chunk."""
    disk = disk_of({ROOT + "/": b""})
    with clocked(), ConsumableWritableLog(ROOT, format="osiris", disk=disk, timer=False) as log:
        log.append_batch([b"a", b"b"])
        log.cursor("reader").store(1)
        log.seal()
        log.append_batch([b"c", b"d"])
        log.seal()
        log.append(b"e")
    files = tree(disk)
    _, second, third = sorted(path for path in files if path.endswith(".segment"))
    cursors = next(place for place in places("osiris", files) if place.path == second)
    files[second], files[third] = files[third], files[second][: cursors.end]
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})
    plan = repair_log(ROOT, plan_only=False, disk=disk)
    assert [(loss.first, loss.last) for loss in plan.losses] == [(3, 5)]
    assert verify_log(ROOT, disk=disk).ok
    assert [record.value for record in Log(ROOT, disk=disk).scan()] == [b"a", b"b", b"e"]


@pytest.mark.parametrize("gone", ["sealed.jsonl", "watermark"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_failed_repair_leaves_no_file_of_the_sidecar_that_was_missing(
    name: str, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the result differs")

    files = dict(base_log(name, True).files) | {".duramen/log.json": b"no JSON"}
    files.pop(f".duramen/{gone}", None)
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})
    monkeypatch.setattr(repair_module, "check_claims", fail)
    with pytest.raises(StorageError) as caught:
        repair_log(ROOT, plan_only=False, format=name, disk=disk, **OPTIONS[name])
    assert "everything was put back as it was" in str(caught.value)
    assert tree(disk) == files


@pytest.mark.parametrize("name", FORMATS)
def test_a_repair_does_not_take_itself_for_the_writer(name: str) -> None:
    """After a power loss, a watermark that was never synced is older than the records, and marked as open."""
    disk = disk_of({ROOT + "/": b""})
    with clocked():
        log = WritableLog(ROOT, format=name, disk=disk, timer=False, **OPTIONS[name])
        log.append_batch([value(number) for number in range(3)])
        old = tree(disk)[".duramen/watermark"]
        for number in range(3, 9):
            log.append(value(number))
        files = tree(disk) | {".duramen/watermark": old, ".duramen/log.json": b"no JSON"}
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})
    plan = repair_log(ROOT, format=name, disk=disk, **OPTIONS[name])
    applied = repair_log(ROOT, plan_only=False, format=name, disk=disk, **OPTIONS[name])
    assert applied.as_dict()["steps"] == plan.as_dict()["steps"]
    assert plan.kept_records == applied.kept_records == len(read(disk, name)) == 9


@pytest.mark.parametrize("name", [name for name in SEGMENTED if base_log(name, True).codec.capabilities.index])
def test_a_repair_of_a_log_that_was_not_closed_writes_the_last_index(name: str) -> None:
    """Otherwise the next repair had to, and an undo took back that one only."""
    disk = disk_of({ROOT + "/": b""})
    with clocked():
        log = WritableLog(ROOT, format=name, disk=disk, timer=False, **OPTIONS[name])
        for number in range(6):
            log.append(value(number))
        files = tree(disk)
    derived = [path for path in files if base_log(name, True).role(path) in (Role.INDEX, Role.TIME_INDEX)]
    files = {path: content for path, content in files.items() if path not in derived}
    files[".duramen/log.json"] = b"no JSON"
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})
    repair_log(ROOT, plan_only=False, format=name, disk=disk, **OPTIONS[name])
    assert repair_log(ROOT, plan_only=True, disk=disk).steps == []
    undo_repair(ROOT, disk=disk, format=name, **OPTIONS[name])
    left = {path: data for path, data in tree(disk).items() if "/quarantine/" not in path}
    assert left.pop(".duramen/repair.json")
    assert left == files

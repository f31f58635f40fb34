"""A repair that is stopped: by a power loss at any operation, by a full disk, by ctrl-C, by another writer."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from itertools import islice

import pytest

from duramen.disk import write_all
from duramen.errors import CorruptionError, LockedError, StorageError, UsageError
from duramen.log.repair import repair_log, undo_repair
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar.json_file import add_checksum, checked_body
from duramen.sidecar.layout import REPAIR_JOURNAL_NAME, sidecar_path
from duramen.sidecar.repair_journal import FileBefore, RepairState, read_repair_journal
from duramen.testing.crash import CrashPattern
from duramen.testing.faulty_disk import FaultyDisk, parse_faults
from duramen.testing.run import clocked, disk_of
from duramen.testing.simulated_disk import SimulatedDisk
from tests.damage.damages import Damage, all_damages
from tests.damage.logs import FORMATS, RECORD_SIZE, ROOT, Base, base_log, options_for, read, tree
from tests.sampling import every

PATTERNS = (
    CrashPattern("lost", "lost"),
    CrashPattern("kept", "kept"),
    CrashPattern("prefix", "prefix", block_bytes=512, seed=3),
    CrashPattern("coin", "coin", block_bytes=512, seed=5),
    CrashPattern("kept", "each", seed=7),
)
CHOSEN = {
    "durable-log": "zeroed page",
    "keratin": "lost segment",
    "rustlog": "wrong name",
    "osiris": "bit flip: payload",
    "fixed-slot": "zeroed page",
    "kafka": "zeroed page",
}


def damaged(name: str, kind: str | None = None) -> tuple[Base, Damage, SimulatedDisk]:
    base = base_log(name, True)
    found = [damage for damage in all_damages(base) if damage.kind == (kind or CHOSEN[name])]
    damage = found[len(found) // 2]
    files = damage.make(dict(base.files))
    return base, damage, disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})


def of_the_log(disk: SimulatedDisk) -> dict[str, bytes]:
    """All files but those of the repair itself."""
    return {
        path: content
        for path, content in tree(disk).items()
        if not path.startswith(".duramen/quarantine/") and not path.startswith(".duramen/repair.json")
    }


def do_repair(disk: SimulatedDisk | FaultyDisk, name: str, **more: bool) -> None:
    inner = disk if isinstance(disk, SimulatedDisk) else disk.inner  # type: ignore[attr-defined]
    with clocked():
        plan = repair_log(ROOT, plan_only=False, format=name, disk=disk, **options_for(inner, name), **more)
    assert plan.ok, plan


def moments(
    disk: SimulatedDisk, name: str, *, undo: bool = False, force: bool = False
) -> Iterator[tuple[int, SimulatedDisk]]:
    """The disk after each operation of a repair, or of its undo."""
    clones: list[SimulatedDisk] = []
    disk.on_operation = lambda _number, _operation: clones.append(disk.clone())
    if undo:
        undo_repair(ROOT, disk=disk, force=force)
    else:
        do_repair(disk, name)
    disk.on_operation = None
    assert len(clones) > 10
    yield from enumerate(clones)


@pytest.mark.parametrize("name", FORMATS)
def test_a_power_loss_at_any_operation_of_a_repair(name: str) -> None:
    _, _, disk = damaged(name)
    before = of_the_log(disk)
    whole = disk.clone()
    do_repair(whole, name)
    expected = read(whole, name)
    for number, clone in islice(moments(disk.clone(), name), 0, None, every(3)):
        crashed = clone.crash(PATTERNS[number % len(PATTERNS)])
        journal = read_repair_journal(crashed, ROOT)
        if journal is not None and journal.state == RepairState.ACTING:
            with pytest.raises(CorruptionError, match="half-way"):
                WritableLog(ROOT, format=name, disk=crashed.clone(), **options_for(crashed, name))
            report = verify_log(ROOT, format=name, disk=crashed, **options_for(crashed, name))
            assert "unfinished-repair" in {finding.code for finding in report.findings}
            if number % 2:
                undone = crashed.clone()
                undo_repair(ROOT, disk=undone, format=name, **options_for(undone, name))
                assert of_the_log(undone) == before, number
        do_repair(crashed, name)
        assert read(crashed, name) == expected, number


@pytest.mark.parametrize("name", FORMATS)
def test_a_power_loss_at_any_operation_of_an_undo(name: str) -> None:
    _, _, disk = damaged(name)
    before = of_the_log(disk)
    do_repair(disk, name)
    for number, clone in moments(disk.clone(), name, undo=True):
        crashed = clone.crash(PATTERNS[number % len(PATTERNS)])
        journal = read_repair_journal(crashed, ROOT)
        assert journal is not None
        if journal.state != RepairState.UNDONE:
            undo_repair(ROOT, disk=crashed, format=name, **options_for(crashed, name))
        assert of_the_log(crashed) == before, number


PERMUTED = [(name, number % 2 == 0) for number, name in enumerate(FORMATS) if name != "fixed-slot"]


def permuted(name: str, sidecar: bool) -> SimulatedDisk:
    """A log of which every segment has the name of the next one."""
    base = base_log(name, sidecar, (2, 3, 2))
    names = [*base.segments[1:], base.segments[0]]
    moved = {path: base.files[old] for path, old in zip(base.segments, names, strict=True)}
    return disk_of({posixpath.join(ROOT, path): content for path, content in (dict(base.files) | moved).items()})


@pytest.mark.parametrize(("name", "sidecar"), PERMUTED)
def test_a_power_loss_at_any_operation_of_a_repair_that_permutes_names(name: str, sidecar: bool) -> None:
    disk = permuted(name, sidecar)
    before = of_the_log(disk)
    records = base_log(name, sidecar, (2, 3, 2)).records
    halfway = 0
    for number, clone in moments(disk.clone(), name):
        crashed = clone.crash(PATTERNS[number % len(PATTERNS)])
        journal = read_repair_journal(crashed, ROOT)
        if journal is not None and journal.state == RepairState.ACTING:
            halfway += 1
            codes = {finding.code for finding in verify_log(ROOT, disk=crashed).findings}
            assert "unfinished-repair" in codes, number
            undone = crashed.clone()
            undo_repair(ROOT, disk=undone)
            assert of_the_log(undone) == before, number
            assert repair_log(ROOT, disk=crashed).refused
        if number % 3 == 0:
            do_repair(crashed, name)
            assert read(crashed, name) == records, number
    assert halfway > 10


@pytest.mark.parametrize("late", ["", "late "])
@pytest.mark.parametrize(("name", "sidecar"), PERMUTED)
def test_a_rename_that_fails_has_everything_put_back(name: str, sidecar: bool, late: str) -> None:
    """At each of them, whether it was carried out or not; `--undo` finds nothing to do, `--apply` works afterwards."""
    disk = permuted(name, sidecar)
    before, call = of_the_log(disk), 0
    hints: list[str] = []
    while True:
        call += 1
        inner = disk.clone()
        faulty = FaultyDisk(inner, parse_faults(f"rename_new#{call}: {late}EIO"))
        try:
            repair_log(ROOT, plan_only=False, disk=faulty)
        except StorageError as error:
            hints.append(error.hint or "")
        else:
            break
        assert of_the_log(inner) == before, call
        with pytest.raises(UsageError, match="nothing to undo"):
            undo_repair(ROOT, disk=inner)
    assert len(hints) > 5
    assert all("everything was put back as it was" in hint for hint in hints)
    assert read(inner, name) == base_log(name, sidecar, (2, 3, 2)).records


@pytest.mark.parametrize(("name", "sidecar"), PERMUTED)
def test_a_power_loss_at_any_operation_of_an_undo_that_permutes_names(name: str, sidecar: bool) -> None:
    disk = permuted(name, sidecar)
    before = of_the_log(disk)
    do_repair(disk, name)
    for number, clone in moments(disk.clone(), name, undo=True):
        crashed = clone.crash(PATTERNS[number % len(PATTERNS)])
        journal = read_repair_journal(crashed, ROOT)
        assert journal is not None
        if journal.state != RepairState.UNDONE:
            undo_repair(ROOT, disk=crashed)
        assert of_the_log(crashed) == before, number


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("pattern", PATTERNS[:: every(3)])
def test_a_power_loss_at_any_operation_of_an_undo_that_drops_something(name: str, pattern: CrashPattern) -> None:
    _, _, disk = damaged(name)
    do_repair(disk, name)
    came = append_since(disk, name)
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in tree(disk).items()})  # all of it synced
    repaired = of_the_log(disk)
    whole = disk.clone()
    undo_repair(ROOT, disk=whole, format=name, force=True, **options_for(whole, name))
    expected, states = of_the_log(whole), set()
    for number, clone in moments(disk.clone(), name, undo=True, force=True):
        crashed = clone.crash(pattern)
        journal = read_repair_journal(crashed, ROOT)
        assert journal is not None
        states.add(journal.state)
        options = options_for(crashed, name)
        if journal.state == RepairState.DONE:
            assert of_the_log(crashed) == repaired, number
        elif journal.state == RepairState.ACTING:
            report = verify_log(ROOT, format=name, disk=crashed, **options)
            assert "unfinished-repair" in {finding.code for finding in report.findings}
            with pytest.raises(CorruptionError, match="half-way"):
                WritableLog(ROOT, format=name, disk=crashed.clone(), **options)
        if journal.state != RepairState.UNDONE:
            undo_repair(ROOT, disk=crashed, format=name, force=True, **options)
        assert of_the_log(crashed) == expected, number
        kept = b"".join(content for path, content in tree(crashed).items() if "/undo-" in path)
        kept += b"".join(of_the_log(crashed).values())  # a file that the repair did not touch is left as it is
        assert all(value in kept for value in came), number
    assert states >= {RepairState.DONE, RepairState.ACTING}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_power_loss_where_the_old_name_was_taken_since(pattern: CrashPattern) -> None:
    """An undo that is begun again must tell what came back from what came since."""
    _, _, disk = damaged("rustlog")
    before = of_the_log(disk)
    do_repair(disk, "rustlog")
    (renamed,) = (entry for entry in read_repair_journal(disk, ROOT).entries if entry.was == FileBefore.NAMED)  # type: ignore[union-attr]
    files = {posixpath.join(ROOT, path): content for path, content in tree(disk).items()}
    disk = disk_of({**files, posixpath.join(ROOT, renamed.path): b"came since"})
    for number, clone in moments(disk.clone(), "rustlog", undo=True, force=True):
        crashed = clone.crash(pattern)
        journal = read_repair_journal(crashed, ROOT)
        assert journal is not None
        if journal.state != RepairState.UNDONE:
            undo_repair(ROOT, disk=crashed, force=True)
        assert of_the_log(crashed) == before, number
        assert b"came since" in {content for path, content in tree(crashed).items() if "/undo-" in path}


def append_since(disk: SimulatedDisk, name: str) -> list[bytes]:
    """Records in the segment that was repaired, and in new ones; returns their values."""
    values = [bytes([65 + number]) * RECORD_SIZE for number in range(4)]
    with clocked(), WritableLog(ROOT, disk=disk) as log:
        for value in values:
            log.append(value)
            if log.codec.capabilities.segments:
                log.seal()
    return values


@pytest.mark.parametrize("name", FORMATS)
def test_a_full_disk_leaves_the_log_as_it_was_or_a_way_back(name: str) -> None:
    _, _, disk = damaged(name)
    before = of_the_log(disk)
    refused = 0
    for call in range(1, 40, 2):
        inner = disk.clone()
        faulty = FaultyDisk(inner, parse_faults(f"write#{call}: short; write#{call + 1}+: ENOSPC"))
        try:
            repair_log(ROOT, plan_only=False, format=name, disk=faulty, **options_for(inner, name))
        except StorageError as error:
            refused += bool(error.hint)
        else:
            break
        journal = read_repair_journal(inner, ROOT)
        if journal is not None and journal.state == RepairState.ACTING:
            undo_repair(ROOT, disk=inner, format=name, **options_for(inner, name))
        left = {p: c for p, c in of_the_log(inner).items() if not p.endswith(".new")}
        assert left == before, call
        do_repair(inner, name)
    assert refused


def test_a_live_writer_is_named() -> None:
    base, _, disk = damaged("keratin", "lost index")
    with WritableLog(ROOT, disk=disk) as log:
        log.append(b"x")
        with pytest.raises(LockedError, match="open for writing elsewhere"):
            repair_log(ROOT, plan_only=False, disk=disk)
    assert base.sidecar


def test_undo_refuses_to_drop_what_came_since() -> None:
    _, damage, disk = damaged("durable-log")
    before = of_the_log(disk)
    do_repair(disk, "durable-log")
    with WritableLog(ROOT, disk=disk) as log:
        offset = log.append(b"came since")
    with pytest.raises(UsageError, match="changed since"):
        undo_repair(ROOT, disk=disk)
    assert read(disk, "durable-log")[offset] == b"came since", damage
    planned = undo_repair(ROOT, disk=disk, plan_only=True)
    assert planned.dropped
    undone = undo_repair(ROOT, disk=disk, force=True)
    assert undone.applied
    left = of_the_log(disk)
    assert {path: left[path] for path in before if path.endswith((".log", ".idx"))} == {
        path: content for path, content in before.items() if path.endswith((".log", ".idx"))
    }
    kept = [content for path, content in tree(disk).items() if path.startswith(".duramen/quarantine/undo-")]
    assert any(b"came since" in content for content in kept)


def test_undo_needs_its_copies() -> None:
    _, _, disk = damaged("durable-log")
    do_repair(disk, "durable-log")
    for path in list(tree(disk)):
        if path.startswith(".duramen/quarantine/"):
            disk.remove(posixpath.join(ROOT, path))
    with pytest.raises(CorruptionError, match="copy"):
        undo_repair(ROOT, disk=disk)


def test_there_is_nothing_to_undo_at_first() -> None:
    base = base_log("keratin", True)
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in base.files.items()})
    with pytest.raises(UsageError, match="nothing to undo"):
        undo_repair(ROOT, disk=disk)


def untouched(name: str, *, spare_bytes: int) -> SimulatedDisk:
    """A log whose first segment is damaged, and whose last one is not. ``spare_bytes`` of zeros follow its records."""
    base = base_log(name, True)
    first, last = base.segments[0], base.segments[-1]
    place = next(place for place in base.places if place.path == first)
    files = dict(base.files)
    at = place.end - 40  # in a value
    files[first] = files[first][:at] + bytes([files[first][at] ^ 1]) + files[first][at + 1 :]
    files[last] += bytes(spare_bytes)
    return disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})


def evidence(files: dict[str, bytes], before: dict[str, bytes]) -> dict[str, bytes]:
    """The files among ``before`` that verify and recovery go by."""
    return {path: files.get(path, b"") for path in before if not path.endswith(("/closed.json", "/metrics.json"))}


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fixed-slot"])
@pytest.mark.parametrize("spare_bytes", [0, 4096])
def test_what_was_appended_to_a_segment_that_the_repair_did_not_touch_is_dropped(name: str, spare_bytes: int) -> None:
    """It stayed readable, although the undo said that it was dropped; keratin then had `manifest-ahead`."""
    disk = untouched(name, spare_bytes=spare_bytes)
    options = options_for(disk, name)
    before = of_the_log(disk)
    with clocked():
        codes = {one.code for one in verify_log(ROOT, format=name, disk=disk, **options).findings}
    do_repair(disk, name)
    came = append_since(disk, name)
    undo_repair(ROOT, disk=disk, format=name, force=True, **options)
    after = of_the_log(disk)
    assert evidence(after, before) == evidence(before, before)
    with clocked():
        found = verify_log(ROOT, format=name, disk=disk, **options).findings
    assert {one.code for one in found} == codes
    assert not [value for value in came if any(value in content for content in after.values())]
    kept = [content for path, content in tree(disk).items() if "/undo-" in path]
    assert all(any(value in content for content in kept) for value in came)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fixed-slot"])
@pytest.mark.parametrize("pattern", PATTERNS[:: every(3)])
def test_a_power_loss_at_any_operation_of_an_undo_that_cuts(name: str, pattern: CrashPattern) -> None:
    disk = untouched(name, spare_bytes=0)
    before = of_the_log(disk)
    do_repair(disk, name)
    came = append_since(disk, name)
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in tree(disk).items()})  # all of it synced
    for number, clone in moments(disk.clone(), name, undo=True, force=True):
        crashed = clone.crash(pattern)
        journal = read_repair_journal(crashed, ROOT)
        assert journal is not None
        if journal.state != RepairState.UNDONE:
            undo_repair(ROOT, disk=crashed, format=name, force=True, **options_for(crashed, name))
        after = of_the_log(crashed)
        assert evidence(after, before) == evidence(before, before), number
        kept = b"".join(content for path, content in tree(crashed).items() if "/undo-" in path)
        assert all(value in kept for value in came), number


def test_a_journal_of_an_earlier_version_has_no_files_to_cut() -> None:
    disk = untouched("durable-log", spare_bytes=0)
    do_repair(disk, "durable-log")
    path = sidecar_path(ROOT, REPAIR_JOURNAL_NAME)
    tree_of = json.loads(checked_body(bytes(disk.map(path).data), b"\n"))
    del tree_of["cut"]
    disk.remove(path)
    file = disk.create(path)
    write_all(file, 0, add_checksum(json.dumps(tree_of).encode(), b"\n"))
    file.close()
    journal = read_repair_journal(disk, ROOT)
    assert journal is not None
    assert journal.cut == []
    undo_repair(ROOT, disk=disk)

"""A reindex that is stopped: each file is the old one or the new one, every verb takes the log, and the next one ends
what it began."""

from __future__ import annotations

import posixpath

import pytest

from duramen.formats import Role, Severity
from duramen.log.read.log import Log
from duramen.log.repair import repair_log
from duramen.log.repair.reindex import reindex
from duramen.log.transfer.update import copy
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.testing.crash import CrashPattern
from duramen.testing.run import clocked, disk_of
from duramen.testing.simulated_disk import SimulatedDisk
from tests.damage.logs import ROOT, base_log, read, tree
from tests.log.repair.test_crash import PATTERNS
from tests.sampling import every

INDEXED = ("durable-log", "keratin", "rustlog", "osiris")


def without_indexes(name: str, how: str) -> SimulatedDisk:
    base = base_log(name, True)
    files = dict(base.files)
    for path in base.files:
        if base.role(path) in (Role.INDEX, Role.TIME_INDEX, Role.MANIFEST):
            if how == "lost":
                del files[path]
            else:
                files[path] = base.files[path][: len(base.files[path]) * 2 // 3]
    return disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})


def of_the_log(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: content for path, content in tree(disk).items() if path != ".duramen/lock"}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("how", ["lost", "cut"])
@pytest.mark.parametrize("pattern", PATTERNS[2 : 4 : every(2)])
def test_a_power_loss_at_any_operation(name: str, how: str, pattern: CrashPattern) -> None:
    disk = without_indexes(name, how)
    records = read(disk, name)
    whole = disk.clone()
    reindex(ROOT, disk=whole)
    expected = of_the_log(whole)
    clones: list[SimulatedDisk] = []
    disk.on_operation = lambda _number, _operation: clones.append(disk.clone())
    reindex(ROOT, disk=disk)
    assert len(clones) > 10
    for number, clone in enumerate(clones):
        crashed = clone.crash(pattern)
        report = verify_log(ROOT, disk=crashed)
        assert report.ok, (number, report.findings)
        said = [finding for finding in report.findings if finding.severity == Severity.WARNING]
        assert all("nothing is lost" in finding.action for finding in said), said
        again = crashed.clone()
        reindex(ROOT, disk=again)
        assert of_the_log(again) == expected, number
        assert verify_log(ROOT, disk=again).findings == []
        if number % 3 == 0:
            _every_verb(crashed, name, records)


def _every_verb(crashed: SimulatedDisk, name: str, records: dict[int, bytes]) -> None:
    assert read(crashed, name) == records
    with Log(ROOT, disk=crashed) as log:
        assert {offset: log.read(offset).value for offset in records} == records
    copy(ROOT, "/copy", disk=crashed)
    assert verify_log("/copy", disk=crashed).ok
    mended = crashed.clone()
    with clocked():
        assert repair_log(ROOT, disk=mended, plan_only=False).ok
    assert read(mended, name) == records
    with clocked(), WritableLog(ROOT, disk=crashed) as log:
        offset = log.append(b"one more")
    assert read(crashed, name) == {**records, offset: b"one more"}

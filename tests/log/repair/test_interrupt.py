"""An interrupt at every operation of a repair and of its undo: the log is as it was, or as it was to become.

Once as it comes to those who use the library, as an exception out of any operation; once as the command line holds it
back, raised only where the repair asks for it, with more that arrive while everything is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from duramen.log.repair import repair_log, undo_repair
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar.repair_journal import RepairState, read_repair_journal
from duramen.testing.run import clocked
from duramen.testing.simulated_disk import SimulatedDisk
from tests.damage.logs import FORMATS, ROOT, options_for, read, tree
from tests.log.repair.test_crash import damaged, do_repair, of_the_log


def everything(disk: SimulatedDisk) -> dict[str, bytes]:
    """All files but the lock and what was being written when the interrupt came, which the next one replaces."""
    return {path: content for path, content in tree(disk).items() if path != ".duramen/lock" and path[-4:] != ".new"}


def interrupted(disk: SimulatedDisk, at: int, act: Callable[[SimulatedDisk], object]) -> bool:
    """Act, with an interrupt out of operation number ``at``. False where it was done before that."""
    seen = 0

    def count(_number: int, _operation: object) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            raise KeyboardInterrupt

    disk.on_operation = count
    try:
        with clocked():
            act(disk)
        return False
    except KeyboardInterrupt:
        return True
    finally:
        disk.on_operation = None


class Waiting:
    """A hold as the command line has it: the interrupt waits, from a given check on."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.checks = 0

    @contextmanager
    def __call__(self) -> Iterator[Callable[[], None]]:
        yield self._check

    def _check(self) -> None:
        self.checks += 1
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", FORMATS)
def test_an_interrupted_repair_is_taken_back_or_done(name: str) -> None:
    _, _, disk = damaged(name)
    before, whole = everything(disk), disk.clone()
    do_repair(whole, name)
    expected = read(whole, name)
    at, old, new = 0, 0, 0
    while True:
        at += 1
        clone = disk.clone()
        if not interrupted(clone, at, lambda disk: do_repair(disk, name)):
            break
        journal = read_repair_journal(clone, ROOT)
        if journal is None:
            assert everything(clone) == before, at
            old += 1
        else:
            assert journal.state == RepairState.DONE, at
            assert read(clone, name) == expected, at
            new += 1
    assert (old > 10, new > 0) == (True, True)


@pytest.mark.parametrize("name", ["durable-log", "keratin"])
def test_the_repair_before_an_interrupted_one_can_still_be_undone(name: str) -> None:
    _, _, disk = damaged(name)
    original = of_the_log(disk)
    do_repair(disk, name)
    lost = next(path for path in tree(disk) if path.endswith(".idx"))
    content = tree(disk)[lost]
    disk.remove(f"{ROOT}/{lost}")
    before = everything(disk)
    checks = Waiting(0)
    repair_log(ROOT, plan_only=False, format=name, disk=disk.clone(), hold=checks, **options_for(disk, name))
    assert checks.checks > 3
    for at in range(1, checks.checks + 1):
        clone = disk.clone()
        with pytest.raises(KeyboardInterrupt):
            repair_log(ROOT, plan_only=False, format=name, disk=clone, hold=Waiting(at), **options_for(clone, name))
        assert everything(clone) == before, at
    file = clone.create(f"{ROOT}/{lost}")
    file.write(0, content)
    file.close()
    undo_repair(ROOT, disk=clone, format=name, **options_for(clone, name))
    assert of_the_log(clone) == original


@pytest.mark.parametrize("force", [False, True])
def test_a_held_undo_neither_starts_nor_finishes(force: bool) -> None:
    _, _, disk = damaged("durable-log")
    do_repair(disk, "durable-log")
    if force:
        with WritableLog(ROOT, disk=disk) as log:
            log.append(b"came since")
            log.seal()
            log.append(b"and more")
    before, checks = everything(disk), Waiting(0)
    undo_repair(ROOT, disk=disk.clone(), force=force, hold=checks)
    assert checks.checks >= (3 if force else 1)
    for at in range(1, checks.checks + 1):
        clone = disk.clone()
        with pytest.raises(KeyboardInterrupt):
            undo_repair(ROOT, disk=clone, force=force, hold=Waiting(at))
        journal = read_repair_journal(clone, ROOT)
        assert journal is not None
        assert journal.state == RepairState.DONE
        assert everything(clone) == before, at

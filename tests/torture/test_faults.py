"""The n-th call fails, for every n of a workload: nothing that was acknowledged is lost, and nobody is told otherwise.

Each workload runs once on a disk without faults to count its calls, and then once for one call of three with one kind
of failure, in a thorough run for every call with every kind. Whatever the program was told before the failure, and
whatever it is told after it, must be true when the machine then loses power with everything that was not synced.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from duramen.errors import DuramenError, PoisonedError, StorageError
from duramen.formats import make
from duramen.log.write.writable_log import WritableLog
from duramen.testing import CrashPattern, Fault, FaultyDisk, SimulatedDisk
from duramen.testing.run import ROOT, clocked, read_all
from duramen.testing.workloads import SETUPS, Setup
from tests.sampling import every

CHANGING = (
    "write",
    "sync",
    "create",
    "replace",
    "truncate",
    "sync_directory",
    "make_directory",
    "open",
    "store",
    "page",
)
FORMATS = ("keratin", "durable-log", "rustlog", "osiris", "fixed-slot", "kafka")
LOST = CrashPattern("lost", "lost")


@dataclass
class Told:
    """What the program was told: offset and value of what was acknowledged, and how often it was refused."""

    durable: dict[int, bytes] = field(default_factory=dict)
    attempted: set[bytes] = field(default_factory=set)
    errors: list[DuramenError] = field(default_factory=list)
    after_poison: int = 0
    unexpected: int = 0
    """Answers of a poisoned log that were no `PoisonedError`."""


def values(setup: Setup, count: int) -> Iterator[bytes]:
    for number in range(count):
        size = setup.record_size or 150 + 37 * number
        yield (b"%04d" % number).ljust(size, b"x")


def work(disk: FaultyDisk, setup: Setup, told: Told) -> None:
    """Appends, batches, rolls, a seal and a reopen, first with zeros ahead of the records and then without; goes on
    after every refusal, as a stubborn program would."""
    queue = list(values(setup, 11))
    told.attempted.update(queue)
    for part, ahead_bytes in ((queue[:6], 2000), (queue[6:], 0)):
        try:
            log = WritableLog(ROOT, format=setup.format, disk=disk, preallocate_bytes=ahead_bytes, **setup.rolling())
        except DuramenError as error:
            told.errors.append(error)
            continue
        poisoned = False
        fired = len(disk.fired)
        for number, value in enumerate(part):
            try:
                if number == 3:
                    base, count = log.append_batch([value, value])
                    acknowledged = {base + row: value for row in range(count)}
                else:
                    acknowledged = {log.append(value): value}
                assert not poisoned, "an append was acknowledged after a failed sync"
                told.durable.update(acknowledged)
                if number == 4 and setup.segments:
                    log.seal()
            except DuramenError as error:
                told.errors.append(error)
                told.after_poison += poisoned and isinstance(error, PoisonedError)
                told.unexpected += poisoned and not isinstance(error, PoisonedError)
                failed_sync = any(" sync " in line for line in disk.fired[fired:])
                poisoned = poisoned or failed_sync or log.is_poisoned
        try:
            log.close()
        except DuramenError as error:
            told.errors.append(error)


def calls_of(setup: Setup) -> list[tuple[int, str]]:
    disk = FaultyDisk(SimulatedDisk(), keep_history=True)
    told = Told()
    with clocked():
        work(disk, setup, told)
    assert not told.errors
    names = [(number, line.split()[0]) for number, line in enumerate(disk.history, start=1)]
    return [(number, name) for number, name in names if name in CHANGING]


def check(setup: Setup, faults: list[Fault], *, sync_failure: str = "lost") -> Told:
    under = SimulatedDisk()
    disk = FaultyDisk(under, faults, sync_failure=sync_failure)  # type: ignore[arg-type]
    told = Told()
    with clocked():
        work(disk, setup, told)
        assert not told.unexpected, repr(told.errors[-1])
        for error in told.errors:
            if isinstance(error, StorageError):
                assert error.path, repr(error)
                assert error.path.startswith("/"), repr(error)
        for left in (under.clone(), under.crash(LOST)):
            with WritableLog(ROOT, format=setup.format, disk=left, **setup.rolling()) as log:
                found = {record.offset: record.value for record in read_all(log)}
                following = log.append(next(values(setup, 1)))
            assert told.durable.items() <= found.items(), f"lost {sorted(told.durable.keys() - found.keys())}"
            assert set(found.values()) <= told.attempted
            assert following == max(found, default=-1) + 1
    return told


EFFECTS = {
    "EIO": {"error": errno.EIO},
    "ENOSPC": {"error": errno.ENOSPC},
    "EINTR": {"error": errno.EINTR},
    "late EIO": {"error": errno.EIO, "late": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("name", FORMATS)
def test_one_call_fails(name: str, effect: str) -> None:
    setup = SETUPS[name]
    calls = calls_of(setup)
    assert len(calls) > 60
    step = every(3 * len(EFFECTS))
    for number, operation in calls[3 * [*EFFECTS].index(effect) % step :: step]:
        fault = Fault(call=number, **EFFECTS[effect])
        try:
            check(setup, [fault])
        except (AssertionError, DuramenError) as error:
            raise AssertionError(f"{name}, {operation}, {fault}: {error}") from error


CLOSES = 3
"""How often the log is closed: what a close leaves for the next writer may fail."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_write_is_short(name: str) -> None:
    """The rest is written by the next call, unless the disk is full by then. Zeros ahead of the records that find no
    room are no loss. A thorough run tries all three at every write."""
    setup = SETUPS[name]
    writes = sum(operation == "write" for _, operation in calls_of(setup))
    assert writes > 10
    unharmed = 0
    step = every(3)
    for number in range(1, writes + 1):
        short = Fault("write", call=number, short=True)
        if number % step == 0:
            assert not check(setup, [short]).errors
        if number % step == 1 % step:
            told = check(setup, [replace(short, error=errno.ENOSPC)])
            if not told.errors:
                assert set(told.durable.values()) == told.attempted
                unharmed += 1
        if number % step == 2 % step:
            full = Fault("write", call=number + 1, count=None, error=errno.ENOSPC)
            told = check(setup, [short, full])
            assert told.errors or set(told.durable.values()) == told.attempted
    # Where every append writes its index entries, these wait for room, and no append fails.
    waiting = 15 if make(setup.format).capabilities.index_at_once else 0
    assert (1 if step == 1 else 0) <= unharmed <= 3 + CLOSES + waiting


@pytest.mark.parametrize("name", FORMATS)
def test_the_disk_stays_full(name: str) -> None:
    """From some write or creation on there is no room any more; syncs work. The log opens once there is room."""
    setup = SETUPS[name]
    calls = [operation for _, operation in calls_of(setup)]
    for operation in ("write", "create", "truncate", "page", "make_directory"):
        for number in range(1, calls.count(operation) + 1, every(3)):
            told = check(setup, [Fault(operation, call=number, count=None, error=errno.ENOSPC)])
            assert told.errors or set(told.durable.values()) == told.attempted  # what a close leaves may fail


@pytest.mark.parametrize("sync_failure", ["lost", "kept"])
@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_acknowledged_after_a_failed_sync(name: str, sync_failure: str) -> None:
    setup = SETUPS[name]
    syncs = [number for number, operation in calls_of(setup) if operation == "sync"]
    poisoned = 0
    for number in syncs[:: every(3)]:
        told = check(setup, [Fault(call=number, error=errno.EIO)], sync_failure=sync_failure)
        assert told.errors
        poisoned += told.after_poison
    assert poisoned > 10 // every(3)


@pytest.mark.parametrize("name", FORMATS)
def test_a_poisoned_log_says_so(name: str) -> None:
    setup = SETUPS[name]
    value = next(values(setup, 1))
    disk = FaultyDisk(SimulatedDisk(), ())
    log = WritableLog(ROOT, format=setup.format, disk=disk, **setup.options)
    log.append(value)
    disk.faults = (Fault("sync", error=errno.EIO),)
    disk._matched = [0]
    with pytest.raises(StorageError) as first:
        log.append(value)
    assert first.value.path
    assert first.value.errno == errno.EIO
    for act in (lambda: log.append(value), lambda: log.append_batch([value]), log.sync, log.seal):
        with pytest.raises(DuramenError) as later:
            act()
        assert isinstance(later.value, PoisonedError) or not setup.segments
    assert log.next_offset == 1
    assert [record.offset for record in log.scan()] == [0]
    disk.faults = ()
    log.close()
    log.close()
    with WritableLog(ROOT, format=setup.format, disk=disk) as again:
        assert again.read(0).value == value

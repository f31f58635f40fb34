"""A stateful model over all formats: whatever the order of appends, rolls, closes, kills and crashes, it is a list."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from duramen.errors import LockedError, OffsetError
from duramen.log.read.log import Log
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.testing import CrashPattern, SimulatedDisk, patterns
from duramen.testing.run import ROOT, Attempt, Moment, Stored, compare, read_all
from duramen.testing.workloads import SETUPS
from tests.sampling import examples

DURABILITIES = st.sampled_from(["write", "interval", "fsync"])
SIZES = st.one_of(st.integers(0, 40), st.integers(440, 530), st.sampled_from([1000, 4000, 4096]))
FORMATS = ("keratin", "durable-log", "rustlog", "rustlog-12", "osiris", "osiris-gzip", "fixed-slot", "kafka")


class LogMachine(RuleBasedStateMachine):
    """A log on a simulated disk, and the list that it should be."""

    setup_name = "keratin"

    def __init__(self) -> None:
        super().__init__()
        self.setup = SETUPS[self.setup_name]
        self.disk = SimulatedDisk()
        self.records: list[Stored] = []
        self.durable = 0
        self.count = 0

    @initialize(tiny=st.booleans(), ahead_bytes=st.sampled_from([None, 0, 300, 5000]))
    def begin(self, tiny: bool, ahead_bytes: int | None) -> None:
        self.options: dict[str, Any] = self.setup.rolling() if tiny else dict(self.setup.options)
        self.options["preallocate_bytes"] = ahead_bytes
        self.log = WritableLog(ROOT, format=self.setup.format, disk=self.disk, **self.options)

    def value(self, size: int) -> bytes:
        """Every value is another one, unless it is too short for that."""
        self.count += 1
        size = self.setup.record_size or (size if self.records else max(size, 1))  # a first record of zeros is refused
        return (b"%d." % self.count * (size // 2 + 1))[:size]

    def acknowledged(self, base: int, values: list[bytes], durability: str) -> None:
        assert base == (self.records[-1].offset + 1 if self.records else 0)
        self.records += [Stored(base + number, value) for number, value in enumerate(values)]
        if durability == "fsync":
            self.durable = len(self.records)

    # --- writing

    @rule(size=SIZES, durability=DURABILITIES)
    def append(self, size: int, durability: str) -> None:
        value = self.value(size)
        self.acknowledged(self.log.append(value, durability=durability), [value], durability)

    @rule(sizes=st.lists(SIZES, max_size=8), durability=DURABILITIES)
    def append_batch(self, sizes: list[int], durability: str) -> None:
        values = [self.value(size) for size in sizes]
        base, count = self.log.append_batch(values, durability=durability)
        assert count == len(values)
        if values:
            self.acknowledged(base, values, durability)

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.durable = len(self.records)

    @precondition(lambda self: self.setup.segments)
    @rule()
    def seal(self) -> None:
        before = len(self.log.segments)
        was_empty = self.log.tail.active.is_empty
        self.log.seal()
        self.durable = len(self.records)
        self.log.refresh()
        assert len(self.log.segments) == before + (not was_empty)

    # --- reading

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.records) + 2))
        if offset < len(self.records):
            assert self.log.read(offset).value == self.records[offset].value
        else:
            with pytest.raises(OffsetError):
                self.log.read(offset)

    @rule(data=st.data())
    def scan(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.records) + 1))
        stop = data.draw(st.integers(start, len(self.records) + 2))
        found = [Stored(record.offset, record.value) for record in self.log.scan(start, stop)]
        assert found == self.records[start:stop]

    @rule()
    def read_elsewhere(self) -> None:
        """Another process sees what is acknowledged, and nothing else."""
        with Log(ROOT, disk=self.disk) as reader:
            assert read_all(reader) == self.records
            assert reader.next_offset == len(self.records)

    @rule()
    def write_elsewhere(self) -> None:
        with pytest.raises(LockedError):
            WritableLog(ROOT, disk=self.disk)

    # --- ending

    @rule()
    def reopen(self) -> None:
        self.log.close()
        assert verify_log(ROOT, disk=self.disk).ok
        self.log = WritableLog(ROOT, disk=self.disk)
        self.durable = len(self.records)
        assert read_all(self.log) == self.records

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.clone()
        self.log = WritableLog(ROOT, disk=self.disk)
        assert read_all(self.log) == self.records

    @rule(seed=st.integers(0, 2**32 - 1), number=st.integers(0, 25))
    def crash(self, seed: int, number: int) -> None:
        self.lose_power(patterns(seed)[number])

    @rule(seed=st.integers(0, 2**32 - 1))
    def crash_by_chance(self, seed: int) -> None:
        self.lose_power(CrashPattern("coin", "coin", block_bytes=512, seed=seed))

    def lose_power(self, pattern: CrashPattern) -> None:
        self.disk = self.disk.crash(pattern)
        self.log = WritableLog(ROOT, disk=self.disk)
        found = read_all(self.log)
        attempts = [Attempt(record.value, record.key) for record in self.records]
        offsets = [record.offset for record in self.records]
        compare(found, Moment("", self.disk, attempts, offsets, self.durable), self.durable, repr(pattern))
        self.records, self.durable = found, len(found)

    @invariant()
    def knows_its_end(self) -> None:
        if hasattr(self, "log"):
            assert self.log.next_offset == len(self.records)
            assert self.durable <= self.log.durable_offset <= len(self.records)


@pytest.mark.slow
@pytest.mark.parametrize("setup", FORMATS)
def test_the_log_is_a_list(setup: str) -> None:
    machine = type(f"Machine_{setup}", (LogMachine,), {"setup_name": setup})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(40),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )

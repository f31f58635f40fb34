"""Single appends go through a record writer. Whatever it does, the ordinary path would have done the same: the same
bytes, errors, counters and verdicts; on the real disk by the kernel's, elsewhere by its twin."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duramen
from duramen import kernel
from duramen.disk import Disk, DiskRecordWriter, PosixDisk, posix_page, refusal
from duramen.errors import DuramenError, FencedError, PoisonedError, QueueTimeoutError, StorageError
from duramen.formats import make
from duramen.kernel import NOT_DONE
from duramen.log import Log, WritableLog
from duramen.sidecar import read_watermark
from duramen.testing import CrashPattern, FaultyDisk, SimulatedDisk
from duramen.testing.run import Run
from tests.log.conftest import FORMATS, START_US, options, value
from tests.log.write.test_group_commit_interrupts import Interrupted, Interrupter
from tests.log.writing import ORDERED, Open, content, values
from tests.sampling import every, examples
from tests.torture.mortal import KilledError, MortalDisk

ALONE = tuple(name for name in FORMATS if make(name, **options(name)).record_shape is not None)
DURABLY = {"fixed-slot", "kafka"}
"""Where the first appends at `fsync` go alone, too. Others write zeros ahead only after a few commits; or the watermark
must be synced as well."""
NATIVE = None if kernel.PURE_PYTHON else kernel.DescriptorRecordWriter
HERE = Path(__file__).parents[3]


class TwinDisk(PosixDisk):
    """The real disk, with the twin."""

    def record_writer(self, *given: Any) -> Any:
        return DiskRecordWriter(*given)


class OrdinaryDisk(PosixDisk):
    """The real disk, without a record writer."""

    def record_writer(self, *given: Any) -> Any:
        raise refusal(errno.EMFILE, ROOT)


def is_alone(log: WritableLog) -> bool:
    """Whether the last append went through the record writer."""
    writer = log.tail.writer
    return writer is not None and writer.seen() is not None


def test_every_format_goes_alone() -> None:
    assert ALONE == FORMATS
    for name, more in (("osiris", {"sub_batch_records": 5}), ("osiris", {"filter_bytes": 16, "filter_by": "json:a"}),
                       ("kafka", {"compression": "lz4"})):  # fmt: skip
        assert make(name, **more).record_shape is None


@pytest.mark.parametrize("name", ALONE)
def test_it_is_the_kernels_on_the_real_disk(create: Open, name: str) -> None:
    with create(name, durability="write") as log:
        for offset in range(5):
            assert log.append(value(offset)) == offset
            assert log.next_offset == offset + 1
            assert is_alone(log) == (offset > 0)  # the first append of a segment is ordinary
        if NATIVE is not None:
            assert type(log.tail.writer) is NATIVE
        assert [record.value for record in log] == values(0, 5)
        log.append(value(5), durability="fsync")
        assert is_alone(log) == (name in DURABLY)
        assert log.durable_offset == 6
        assert log.append(value(6)) == 6
        assert is_alone(log)
        assert log.durable_offset == 6
    assert content(log.path) == values(0, 7)


# --- the same bytes


class Step(NamedTuple):
    kind: str
    size: int = 0
    key: bytes | str | None = None
    headers: Any = None
    at_ms: int | None = None
    durability: str | None = None


def steps() -> st.SearchStrategy[Step]:
    keys = st.one_of(st.none(), st.binary(max_size=5), st.text(max_size=3))
    header = st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=4), st.text(max_size=3)))
    headers = st.one_of(st.none(), st.lists(header, max_size=2), st.binary(max_size=9))
    times = st.one_of(st.none(), st.integers(START_US // 1000 - 5, START_US // 1000 + 60_000))
    levels = st.sampled_from([None, "write", "interval", "fsync"])
    append = st.tuples(st.just("append"), st.integers(0, 300), keys, headers, times, levels)
    large = st.tuples(st.just("append"), st.sampled_from([4096, 65_400, 65_536, 70_000]))
    plain = st.tuples(st.just("append"), st.integers(1, 300))
    others = st.tuples(st.sampled_from(["batch", "sync", "seal", "text", "bytearray", "reopen", "late"]))
    one = st.one_of(plain, plain, plain, append, append, large, others)
    return one.map(lambda given: Step(*given))


class Steps:
    """Takes the same steps on a log, whatever its disk."""

    def __init__(self, root: Path, name: str, disk: Disk, durability: str) -> None:
        self._root, self._name, self._disk, self._durability = root, name, disk, durability
        self.now_us = START_US
        self.done: list[Any] = []
        self.alone = 0
        self.log = self._open()

    def _open(self) -> WritableLog:
        more = {} if self._name == "fixed-slot" else {"segment_max_bytes": 200_000}
        return WritableLog(
            str(self._root), format=self._name, disk=self._disk, durability=self._durability, timer=False,
            clock=lambda: self.now_us * 1000, sync_interval_records=7, sync_interval_bytes=3000, **options(self._name),
            **more,
        )  # fmt: skip

    def take(self, step: Step) -> None:
        self.now_us += 1500
        try:
            self.done.append(self._take(step))
        except DuramenError as error:
            self.done.append((type(error).__name__, error.message, error.hint))
        mark = self.log.tail.visible
        self.done.append((mark, self.log.next_offset, self.log.durable_offset))
        if self._name in ALONE:
            self.alone += is_alone(self.log)
            assert read_watermark(self.log.disk, self.log.path) == mark

    def _take(self, step: Step) -> Any:
        log, size = self.log, 16 if self._name == "fixed-slot" and step.size else step.size
        data = random.Random(size).randbytes(size)
        if step.kind == "append":
            more = {"key": step.key, "headers": step.headers, "timestamp": step.at_ms, "durability": step.durability}
            return log.append(data, **more)
        if step.kind == "batch":
            return log.append_batch(values(0, 3))
        if step.kind == "late":
            return log.append(value(0), timestamp=1)
        if step.kind == "text":
            return log.append(value(1).decode())
        if step.kind == "bytearray":
            return log.append(bytearray(value(2)))
        if step.kind == "reopen":
            log.close()
            self.log = self._open()
            return None
        return getattr(log, step.kind)()

    def finish(self) -> dict[str, bytes]:
        """Every file, after the log was closed."""
        counters = self.log.counters
        self.done.append((counters.records, counters.bytes, counters.appends, counters.errors, counters.rolls))
        self.log.close()
        files = {str(path.relative_to(self._root)): path for path in self._root.rglob("*") if path.is_file()}
        changing = (".duramen/metrics.json", ".duramen/closed.json")  # with counters of page faults; with file stamps
        return {name: path.read_bytes() for name, path in files.items() if name not in changing}


@pytest.mark.parametrize("name", ALONE)
@given(st.data(), st.sampled_from(["write", "fsync"]))
@settings(max_examples=examples(12), deadline=None)
def test_three_ways_to_the_same_bytes(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, durability: str
) -> None:
    disks = {"kernel": PosixDisk(), "twin": TwinDisk(), "ordinary": OrdinaryDisk()}
    taken = data.draw(st.lists(steps(), min_size=1, max_size=25))
    root = Path(tempfile.mkdtemp(dir=tmp_path_factory.getbasetemp()))
    try:
        runs = {kind: Steps(root / kind, name, disk, durability) for kind, disk in disks.items()}
        for step in taken:
            for run in runs.values():
                run.take(step)
        files = {kind: run.finish() for kind, run in runs.items()}
        assert runs["kernel"].done == runs["ordinary"].done
        assert runs["twin"].done == runs["ordinary"].done
        assert runs["kernel"].alone == runs["twin"].alone >= runs["ordinary"].alone == 0
        assert files["kernel"].keys() == files["ordinary"].keys()
        for file in files["ordinary"]:
            assert files["twin"][file] == files["kernel"][file], file
            if not file.endswith("watermark"):  # the counter of stores is that of the page
                assert files["kernel"][file] == files["ordinary"][file], file
        assert duramen.verify(root / "kernel").ok
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("durability", ["write", "fsync"])
def test_many_appends_between_ordinary_ones(create: Open, name: str, durability: str) -> None:
    """More than a record writer writes before the log takes them over, more than one metrics interval, a roll."""
    now_us = START_US
    more = {} if name == "fixed-slot" else {"segment_max_bytes": 60_000}
    with create(name, durability=durability, clock=lambda: now_us * 1000, **more) as log:
        alone = 0
        for offset in range(3000):
            now_us += 700
            assert log.append(value(offset)) == offset
            alone += is_alone(log)
        assert alone > 2900 or (name, durability) == ("rustlog", "fsync")
        assert durability == "write" or log.durable_offset == 3000
        assert log.counters.records == log.counters.appends == 3000
        assert log.counters.bytes > 3000 * 16
        assert (Path(log.path) / ".duramen/metrics.json").exists()
    assert content(log.path) == values(0, 3000)
    assert duramen.verify(log.path).ok


@pytest.mark.parametrize("name", ORDERED)
def test_a_late_time_is_refused_as_ever(create: Open, name: str) -> None:
    with create(name, durability="write") as log:
        log.append(value(0), timestamp=START_US // 1000)
        for offset in (1, 2):
            log.append(value(offset), timestamp=START_US // 1000 + 1_000 * offset)
        assert is_alone(log)
        with pytest.raises(duramen.LateTimestampError, match="a timestamp goes back"):
            log.append(value(3), timestamp=START_US // 1000 + 1_999)
        assert log.append(value(3), timestamp=START_US // 1000 + 2_000) == 3


def test_interval_counts_what_went_alone(create: Open) -> None:
    with create("keratin", durability="interval", timer=False, sync_interval_records=10) as log:
        for offset in range(25):
            log.append(value(offset))
            assert log.durable_offset == (offset + 1) // 10 * 10
            assert is_alone(log) == (offset % 10 in range(1, 9))
        log.append(value(25), durability="write")
        assert is_alone(log)


# --- what ends it


@pytest.mark.parametrize("disk", [PosixDisk, TwinDisk])
def test_a_writer_that_was_not_armed_yet_shows_nothing(tmp_path: Path, disk: type[PosixDisk]) -> None:
    """A reader in another thread may look between the roll and the first append."""
    with duramen.open(tmp_path / "log", "a", disk=disk(), durability="write") as log:
        log.append(value(0))
        log.append(value(1))
        log.seal()
        writer = log.tail._record_writer((None, 0))
        assert writer is not None
        assert writer.seen() is None
        assert log.next_offset == 2


@pytest.mark.parametrize("durability", ["write", "fsync"])
@pytest.mark.parametrize("scene", ["deleted", "lock deleted", "replaced"])
@pytest.mark.parametrize("disk", [PosixDisk, TwinDisk])
def test_a_fenced_writer_writes_nothing_more(
    tmp_path: Path, disk: type[PosixDisk], scene: str, durability: str
) -> None:
    root = tmp_path / "log"
    log = duramen.open(root, "a", disk=disk(), durability=durability, preallocate_bytes=0)
    for offset in range(3):
        log.append(value(offset))
    assert is_alone(log)
    segment = Path(log.segments[-1].path)
    before = segment.read_bytes()
    if scene == "lock deleted":
        (root / ".duramen/lock").unlink()
    else:
        (root / ".duramen").rename(tmp_path / "was")
    if scene == "replaced":
        shutil.copytree(tmp_path / "was", root / ".duramen")
    with pytest.raises(FencedError):
        log.append(value(3))
    with pytest.raises(FencedError):
        log.append(value(3))
    log.close()
    assert segment.read_bytes() == before


@pytest.mark.parametrize("scene", ["watermark replaced", "segment replaced", "log replaced"])
@pytest.mark.parametrize("disk", [PosixDisk, TwinDisk])
def test_what_was_replaced_before_the_sync_ended_is_not_acknowledged(
    tmp_path: Path, disk: type[PosixDisk], scene: str
) -> None:
    root, was = tmp_path / "log", tmp_path / "was"
    log = duramen.open(root, "a", disk=disk(), format="fixed-slot", record_size=len(value(0)))
    for offset in range(3):
        log.append(value(offset))
    assert is_alone(log)
    writer = log.tail.writer
    name = {"watermark replaced": ".duramen/watermark", "segment replaced": Path(log.segments[-1].path).name}.get(scene)
    if name is not None:
        (root / name).rename(was)
        shutil.copy(was, root / name)
    else:  # all but the directory itself is what it was
        (root / ".duramen").rename(was)
        root.rename(tmp_path / "old")
        root.mkdir()
        was.rename(root / ".duramen")
    with pytest.raises(FencedError):
        log.append(value(3))
    assert log.tail.writer is writer
    assert log.next_offset == 3
    with pytest.raises(FencedError):
        log.append(value(3))
    log.close()


def descriptors_of(path: Path) -> set[int]:
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the listing
            if os.path.samestat(os.fstat(number), path.stat()):
                found.add(number)
    return found


def descriptor_of(log: WritableLog) -> int:
    """The record writer's own descriptor of the active segment."""
    with log.tail.active.file._descriptor as ordinary:  # type: ignore[attr-defined]
        (descriptor,) = descriptors_of(Path(log.tail.active.path)) - {ordinary}
    return descriptor


def everybody(log: WritableLog, threads: int = 8, turns: int = 20) -> tuple[dict[int, bytes], list[DuramenError]]:
    """What so many threads appended, and the error that ended each."""
    told: dict[int, bytes] = {}
    errors: list[DuramenError] = []

    together = threading.Barrier(threads)

    def work(number: int) -> None:
        together.wait()
        try:
            for turn in range(turns):
                data = b"%08d%08d" % (number, turn)
                told[log.append(data)] = data
        except DuramenError as error:
            errors.append(error)

    crowd = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return told, errors


@pytest.mark.skipif(NATIVE is None or sys.platform != "linux", reason="takes the kernel's descriptor away")
def test_a_failed_write_of_a_crowd_takes_the_ordinary_path(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", preallocate_bytes=0) as log:
        for offset in range(3):
            log.append(value(offset))
        assert is_alone(log)
        taken = descriptor_of(log)
        readable = os.open(log.tail.active.path, os.O_RDONLY)
        os.dup2(readable, taken)  # nothing can be written there
        told, errors = everybody(log)
        os.close(readable)
        assert not errors
        assert sorted(told) == list(range(3, 163))
    assert content(log.path)[3:] == [told[offset] for offset in sorted(told)]
    assert duramen.verify(log.path).ok


@pytest.mark.skipif(NATIVE is None or sys.platform != "linux", reason="takes the kernel's descriptor away")
def test_a_failed_sync_of_a_crowd_poisons(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", preallocate_bytes=0) as log:
        for offset in range(3):
            log.append(value(offset))
        with open("/dev/null", "wb") as null:  # takes everything, and cannot be synced
            os.dup2(null.fileno(), descriptor_of(log))
        told, errors = everybody(log)
        assert not told
        assert len(errors) == 8
        assert all(isinstance(error, (StorageError, PoisonedError)) for error in errors)
        assert any("invalid argument" in str(error) for error in errors)
        assert log.is_poisoned
        assert log.next_offset == 3
    assert content(log.path) == values(0, 3)
    assert duramen.verify(log.path).ok


@pytest.mark.parametrize("name", ALONE)
def test_a_crowd_shares_syncs(create: Open, name: str) -> None:
    with create(name, preallocate_bytes=0) as log:
        log.append(value(0))
        told: dict[int, bytes] = {}
        while log.counters.sync_seconds.count == log.counters.records:  # until two of them met
            more, errors = everybody(log, threads=16)
            assert not errors
            told |= more
        assert sorted(told) == list(range(1, len(told) + 1))
        assert log.durable_offset == log.counters.records == log.counters.appends == len(told) + 1
    assert content(log.path)[1:] == [told[offset] for offset in sorted(told)]
    assert duramen.verify(log.path).ok


def test_a_reader_sees_nothing_that_is_not_synced(create: Open) -> None:
    with create("keratin", preallocate_bytes=0) as log:
        log.append(value(0))
        over = threading.Event()
        seen: list[tuple[int, int]] = []

        def look() -> None:
            while not over.is_set():
                mark = read_watermark(PosixDisk(), log.path)
                assert mark is not None
                seen.append((mark.next_offset, mark.durable_offset))
                assert log.durable_offset <= log.next_offset

        thread = threading.Thread(target=look)
        thread.start()
        everybody(log, threads=4)
        over.set()
        thread.join()
    assert seen == sorted(seen)
    assert all(next_offset == durable_offset for next_offset, durable_offset in seen)


@pytest.mark.parametrize("durability", ["write", "fsync"])
def test_a_poisoned_log_appends_nothing(create: Open, durability: str) -> None:
    with create("keratin", durability=durability, preallocate_bytes=0) as log:
        for offset in range(3):
            log.append(value(offset))
        log.tail.poison(StorageError("from elsewhere"))
        for _ in range(2):
            with pytest.raises(PoisonedError):
                log.append(value(3))
        assert log.next_offset == 3
    with pytest.raises(duramen.UsageError, match="closed"):
        log.append(value(3))
    assert content(log.path) == values(0, 3)


def test_a_closed_log_leaves_no_descriptor_open(create: Open) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    create("keratin", durability="write").close()
    gc.collect()  # the logs of other tests
    before = opened()
    with create("keratin", durability="write") as log:
        for offset in range(3):
            log.append(value(offset))
        log.seal()
        for offset in range(3, 6):
            log.append(value(offset))
        assert is_alone(log)
    assert opened() == before


@pytest.mark.parametrize("way", ["transaction", "producer", "linger"])
def test_what_goes_together_with_others_does_not_go_alone(create: Open, way: str) -> None:
    with create("keratin", durability="write", **({"linger_ms": 0.01} if way == "linger" else {})) as log:
        if way == "producer":
            log.producer("p").append(value(0))
        if way == "transaction":
            log.append(value(0))
            log.append(value(1))
            assert log.append_once([[b"a", b"b"]], writer="w", batch=1) == (2, 2)
            assert not is_alone(log)
            assert log.append(value(4)) == 4
        else:
            log.append(value(1))
            log.append(value(2))
            assert not is_alone(log)
    assert duramen.verify(log.path).ok


def test_a_writer_without_descriptors_appends_as_ever(create: Open) -> None:
    with create("keratin", disk=OrdinaryDisk(), durability="write") as log:
        for offset in range(4):
            assert log.append(value(offset)) == offset
        assert log.tail.writer is None
    assert content(log.path) == values(0, 4)


def test_a_forked_child_appends_nothing(tmp_path: Path) -> None:
    script = """
import os, sys, threading, duramen
log = duramen.open(sys.argv[1], "a", durability="write")
for n in range(3):
    log.append(b"%d" % n)
held, done = threading.Event(), threading.Event()
def hold():
    with log._commit.alone():
        held.set(); done.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if not child:
    for _ in range(2):
        try:
            log.append(b"child")
        except duramen.UsageError as error:
            print(error, flush=True)
    log.close()
    os._exit(0)
done.set()
os.waitpid(child, 0)
for n in range(3, 6):
    log.append(b"%d" % n)
log.close()
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.count("a forked child cannot write to it") == 2
    assert content(tmp_path / "log") == [b"%d" % n for n in range(6)]
    assert duramen.verify(tmp_path / "log").ok


@pytest.mark.skipif(sys.platform != "linux", reason="calls fork of the C library")
@pytest.mark.parametrize("durability", ["write", "fsync"])
def test_a_child_that_python_knows_nothing_of_appends_nothing(tmp_path: Path, durability: str) -> None:
    script = """
import ctypes, os, sys, duramen
log = duramen.open(sys.argv[1], "a", durability=sys.argv[2], preallocate_bytes=0)
for n in range(3):
    log.append(b"%d" % n)
child = ctypes.PyDLL(None).fork()
if not child:
    for _ in range(2):
        try:
            log.append(b"child")
        except duramen.UsageError as error:
            print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
log.append(b"3")
log.close()
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log"), durability],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert run.stdout.count("a forked child cannot write to it") == 2
    assert content(tmp_path / "log") == [b"%d" % n for n in range(4)]


def test_a_queued_append_does_not_wait_for_a_stuck_one(create: Open) -> None:
    with create("keratin", durability="write") as log:
        log.append(value(0))
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with log._commit.alone():
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        with pytest.raises(QueueTimeoutError, match="not begun in time"):
            log.append(value(1), timeout_s=0.01)
        done.set()
        thread.join()
        assert log.append(value(1), timeout_s=60) == 1


def test_an_append_within_an_append_is_refused(create: Open) -> None:
    with create("keratin", durability="write") as log:
        log.append(value(0))
        with log._commit.alone(), pytest.raises(duramen.UsageError, match="called from within the same call"):
            log.append(value(1))
        assert log.append(value(1)) == 1


# --- failures, one at every write


LOST = CrashPattern("lost", "lost")
ROOT = "/log"


def appended(disk: Disk, name: str, durability: str) -> tuple[dict[int, bytes], list[DuramenError]]:
    """What was acknowledged, and the errors, of appends and others between them."""
    count = 12
    told: dict[int, bytes] = {}
    errors: list[DuramenError] = []
    try:
        log = WritableLog(
            ROOT, format=name, disk=disk, durability=durability, timer=False, preallocate_bytes=0, **options(name)
        )
    except DuramenError as error:
        return told, [error]
    for number in range(count):
        try:
            if number == count // 2:
                log.sync()
            told[log.append(value(number))] = value(number)
            assert log.next_offset == max(told) + 1
        except DuramenError as error:
            errors.append(error)
    try:
        log.close()
    except DuramenError as error:
        errors.append(error)
    return told, errors


FAULTS = ("EIO", "ENOSPC", "late EIO", "short", "short ENOSPC")


@pytest.mark.parametrize("durability", ["write", "fsync"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ALONE)
def test_a_failed_write_loses_nothing(name: str, fault: str, durability: str) -> None:
    counting = FaultyDisk(SimulatedDisk(), keep_history=True)
    told, errors = appended(counting, name, durability)
    assert (len(told), errors) == (12, [])
    kinds = ("write",) if "short" in fault else ("write", "store", "sync")
    calls = [n for n, line in enumerate(counting.history, 1) if line.split()[0] in kinds]
    assert len(calls) > 12
    for call in calls[FAULTS.index(fault) % every(6) :: every(6)]:
        for again in ("", "+"):
            under = SimulatedDisk()
            disk = FaultyDisk(under, f"#{call}{again}: {fault}" if not again or "short" not in fault else "")
            told, errors = appended(disk, name, durability)
            for left in (under.clone(), under.crash(LOST)):
                with WritableLog(ROOT, format=name, disk=left, **options(name)) as log:
                    found = {record.offset: record.value for record in log.scan()}
                    if left is not None and log.recovery is not None and found.keys() != told.keys():
                        assert errors or left is not under
                    following = log.append(value(99))
                assert following == len(found)
                assert list(found) == list(range(len(found)))
                assert set(found.values()) <= {value(number) for number in range(12)}
            live = under.clone()
            with Log(ROOT, format=name, disk=live, **options(name)) as reader:
                seen = {record.offset: record.value for record in reader.scan()}
            assert told.items() <= seen.items(), (call, again)
            if durability == "fsync":
                with WritableLog(ROOT, format=name, disk=under.crash(LOST), **options(name)) as log:
                    assert told.items() <= {record.offset: record.value for record in log.scan()}.items(), (call, again)


@pytest.mark.parametrize("fault", ["EIO", "short", "late EIO"])
def test_an_index_entry_that_cannot_be_written_waits(fault: str) -> None:
    """The record is acknowledged; an ordinary append then writes the entries that wait."""
    under = SimulatedDisk()
    disk = FaultyDisk(under, f"write#6 *.index: {fault}")
    index = f"{ROOT}/{0:020}.index"
    log = WritableLog(ROOT, format="osiris", disk=disk, durability="write", timer=False)
    for offset in range(4):
        log.append(value(offset))
    assert is_alone(log)
    assert not disk.fired
    assert log.append(value(4)) == 4
    assert disk.fired
    assert log.tail.writer is not None
    assert is_alone(log)
    assert not log.tail.writer.is_armed
    assert len(under.tree()[index]) < 8 + 5 * 29 or fault == "late EIO"
    for offset in range(5, 8):
        assert log.append(value(offset)) == offset
    assert is_alone(log)
    entries = under.tree()[index]
    assert len(entries) == 8 + 8 * 29
    log.close()
    assert under.tree()[index] == entries
    assert duramen.verify(ROOT, disk=under).ok


@pytest.mark.parametrize("durability", ["write", "fsync"])
@pytest.mark.parametrize("name", ALONE)
def test_a_killed_writer_leaves_what_it_acknowledged(name: str, durability: str) -> None:
    """At every change, also in the middle of a write. The others read what was acknowledged, and the next writer goes
    on after it."""
    lives = 0
    while True:
        lives += every(3)
        under = SimulatedDisk()
        disk = MortalDisk(under)
        log = WritableLog(
            ROOT, format=name, disk=disk, durability=durability, timer=False, preallocate_bytes=0, **options(name)
        )
        log.append(value(0))
        disk.die_after(lives, in_part=lives % 2 == 0)
        told = 1
        try:
            for number in range(1, 8):
                log.append(value(number))
                told = number + 1
        except KilledError:
            pass
        with Log(ROOT, format=name, disk=under.clone(), **options(name)) as reader:
            assert [record.value for record in reader.scan()][:told] == values(0, told)
        with WritableLog(ROOT, format=name, disk=under.clone(), **options(name)) as again:
            assert told <= again.next_offset <= told + 1
            assert again.append(value(again.next_offset)) == again.next_offset - 1
            assert [record.value for record in again.scan()] == values(0, again.next_offset)
        if not disk.is_dead:
            break
    assert lives > 10


def test_the_crash_explorer_goes_this_way() -> None:
    done = []
    append = DiskRecordWriter._append

    def counted(self: Any, *given: Any, is_synced: bool) -> int:
        offset = append(self, *given, is_synced=is_synced)
        done.append(offset != NOT_DONE and is_synced == (workload == "singles"))
        return offset

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(DiskRecordWriter, "_append", counted)
        for workload in ("writes", "intervals", "singles"):
            for setup in ALONE:
                for seed in (1, 2, 3):
                    Run(setup, workload, seed).run()
                assert sum(done) > 0 or (setup, workload) == ("rustlog", "singles"), (setup, workload)
                done.clear()


# --- interrupts


MODULES = (
    "write/writable_log.py",
    "write/single_appends.py",
    "write/group_commit.py",
    "write/appender.py",
    "disk/record_writer.py",
)


@pytest.mark.parametrize("durability", ["write", "fsync"])
@pytest.mark.parametrize("told", [1, 3], ids=["arming", "armed"])
@pytest.mark.parametrize("disk", [PosixDisk, TwinDisk], ids=["kernel", "twin"])
def test_an_exception_from_outside_at_any_place(
    tmp_path: Path, disk: type[PosixDisk], told: int, durability: str
) -> None:
    """The interrupted append may be stored or not; nothing else is different afterwards."""
    for place in range(1, 1000, every(6) if told == 1 else every(2)):
        root = tmp_path / str(place)
        log = WritableLog(
            str(root), format="keratin", disk=disk(), durability=durability, timer=False, preallocate_bytes=0
        )
        for offset in range(told):
            log.append(value(offset))
        before = sys.gettrace()
        sys.settrace(interrupter := Interrupter(place, MODULES))
        try:
            log.append(value(told))
        except Interrupted:
            pass
        finally:
            sys.settrace(before)
        if interrupter.left > 0:
            log.close()
            break
        with duramen.open(root) as reader:
            assert [record.value for record in reader.scan()] in (values(0, told), values(0, told + 1))
        try:
            assert log.append(value(99)) in (told, told + 1)
        except (PoisonedError, StorageError):
            assert log.is_poisoned
        log.close()
        found = content(root)
        assert found[:told] == values(0, told), place
        assert found[told:] in ([], [value(told)], [value(99)], [value(told), value(99)]), place
        assert duramen.verify(root).ok
        shutil.rmtree(root)
    assert place > 10


# --- others at the same time


@pytest.mark.parametrize("durability", ["write", "fsync"])
@pytest.mark.parametrize("name", ALONE)
def test_a_crowd_of_everything(create: Open, name: str, durability: str) -> None:
    told: dict[int, bytes] = {}
    wrong: list[BaseException] = []
    more = {} if name == "fixed-slot" else {"segment_max_bytes": 20_000}
    with create(name, durability=durability, preallocate_bytes=0, **more) as log:
        log.append(value(0))
        told[0] = value(0)

        def work(number: int) -> None:
            chance = random.Random(number)
            try:
                for turn in range(120):
                    data = zlib.crc32(b"%d %d" % (number, turn)).to_bytes(4, "big") * 4
                    kind = chance.random()
                    if kind < 0.8:
                        told[log.append(data)] = data
                    elif kind < 0.86:
                        told[log.append(data, durability=chance.choice(["write", "fsync", "interval"]))] = data
                    elif kind < 0.92:
                        base, count = log.append_batch([data] * 3)
                        told.update(dict.fromkeys(range(base, base + count), data))
                    elif kind < 0.94 and name != "fixed-slot":
                        log.seal()
                    elif kind < 0.96:
                        stored = log.append_once([[data, data]], writer=f"w{number}", batch=turn + 1)
                        assert stored is not None
                        told.update(dict.fromkeys(range(stored.base_offset, stored.base_offset + 2), data))
                    elif kind < 0.98:
                        log.sync()
                    else:
                        offset = max(told)
                        assert log.read(offset).value == told[offset]
                        assert log.next_offset > offset
            except BaseException as error:  # noqa: BLE001
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong
        assert log.counters.records == len(told) == log.next_offset
    assert duramen.verify(log.path).ok
    with duramen.open(log.path) as reader:
        assert {record.offset: record.value for record in reader.scan()} == told


def test_a_follower_in_another_process_wakes_at_once(tmp_path: Path) -> None:
    """It sleeps until it is woken: a missed wake-up would leave it asleep."""
    script = """
import sys, duramen
from duramen.disk import posix_page
posix_page._SLEEP_S = posix_page._POLL_S = 3600.0
with duramen.open(sys.argv[1]) as log:
    for record in log.scan(follow=True):
        print(record.offset, flush=True)
        if record.value == b"end":
            break
"""
    assert posix_page._SLEEP_S < 3600
    with duramen.open(tmp_path / "log", "a", durability="write") as log:
        log.append(b"0")
        with subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
        ) as follower:
            assert follower.stdout is not None
            for offset in range(300):
                assert follower.stdout.readline() == f"{offset}\n"
                log.append(b"end" if offset == 298 else b"x")
                if offset == 298:
                    break
            assert is_alone(log)


def test_a_follower_of_this_process_wakes_at_once(create: Open) -> None:
    with create("keratin", durability="write") as log:
        log.append(value(0))
        found: list[bytes] = []

        def follow() -> None:
            for record in log.scan(follow=True):
                found.append(record.value)
                turn.set()
                if record.offset == 50:
                    break

        turn = threading.Event()
        thread = threading.Thread(target=follow)
        thread.start()
        for offset in range(1, 51):
            turn.wait()
            turn.clear()
            log.append(value(offset))
        thread.join()
    assert found == values(0, 51)


@pytest.fixture(autouse=True)
def _untraced() -> Iterator[None]:
    before: Callable[..., Any] | None = sys.gettrace()
    yield
    sys.settrace(before)


@pytest.mark.skipif(NATIVE is None or sys.platform != "linux", reason="takes the kernel's descriptor away")
def test_a_failed_sync_of_a_batch_poisons_the_log(tmp_path: Path) -> None:
    with contextlib.suppress(DuramenError), duramen.open(tmp_path / "log", "a", preallocate_bytes=0) as log:
        for offset in range(3):
            log.append(value(offset))
        assert is_alone(log)
        ends = os.pipe()
        os.dup2(ends[1], descriptor_of(log))  # what cannot be synced
        with pytest.raises(StorageError, match="invalid argument"):
            log.append_batch([value(3)])
        assert log.is_poisoned
        assert log.next_offset == 3
        for end in ends:
            os.close(end)
    assert content(log.path)[:3] == values(0, 3)


@pytest.mark.skipif(NATIVE is None or sys.platform != "linux", reason="takes the kernel's descriptor away")
def test_a_failed_sync_of_a_proof_names_the_watermark(tmp_path: Path) -> None:
    with contextlib.suppress(DuramenError), duramen.open(tmp_path, "a", format="rustlog") as log:
        log.append_batch([value(0)])
        path = tmp_path / ".duramen/watermark"
        with log.tail.sidecar._watermark._page._descriptor as page:  # type: ignore[union-attr]
            number = max(descriptors_of(path) - {page})  # the record writer's
        ends = os.pipe()
        os.dup2(ends[1], number)  # what cannot be synced
        with pytest.raises(StorageError, match="invalid argument") as caught:
            log.append_batch([value(1)])
        assert caught.value.path == str(path)
        assert log.is_poisoned
        for end in ends:
            os.close(end)
    assert content(str(tmp_path))[:1] == [value(0)]


@pytest.mark.skipif(NATIVE is None or sys.platform != "linux", reason="the kernel's own calls")
@pytest.mark.parametrize("durability", ["write", "fsync"])
def test_a_batch_of_a_log_that_was_moved_takes_the_ordinary_path(tmp_path: Path, durability: str) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        log.append_batch([value(0)], durability=durability)
        os.rename(tmp_path / "log", tmp_path / "moved")
        log.append_batch([value(1)], durability=durability)
        os.mkdir(tmp_path / "log")
        with pytest.raises(FencedError):
            log.append_batch([value(2)], durability=durability)
    assert content(str(tmp_path / "moved"))[:2] == [value(0), value(1)]


@pytest.mark.parametrize("way", ["append", "append_batch"])
@pytest.mark.parametrize("durability", ["write", "fsync"])
@pytest.mark.parametrize("name", [".duramen/watermark", ".duramen/lock", "segment"])
def test_a_link_in_place_of_a_file_fences_the_writer(tmp_path: Path, name: str, durability: str, way: str) -> None:
    """No later writer opens a log through a link. The kernel followed it to the same file."""
    with duramen.open(tmp_path / "log", "a", format="fixed-slot", record_size=len(value(0))) as log:
        for offset in range(3):
            log.append(value(offset), durability=durability)
        assert is_alone(log)
        path = Path(log.segments[-1].path if name == "segment" else f"{log.path}/{name}")
        path.rename(tmp_path / "was")
        path.symlink_to(tmp_path / "was")
        with pytest.raises(FencedError):
            log.append(value(3)) if way == "append" else log.append_batch([value(3)])
        assert log.next_offset == 3

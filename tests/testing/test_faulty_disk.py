"""The faulty disk: its language, what each effect does, and that no call escapes it."""

from __future__ import annotations

import errno
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.disk import PosixDisk
from duramen.disk.vfs import Disk, write_all
from duramen.errors import StorageError, UsageError
from duramen.testing.crash import CrashPattern
from duramen.testing.faulty_disk import OPERATIONS, Fault, FaultyDisk, parse_faults
from duramen.testing.simulated_disk import SimulatedDisk

# --- the language


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sync#3: EIO", Fault("sync", call=3, error=errno.EIO)),
        ("write#2 *.log: ENOSPC", Fault("write", call=2, path="*.log", error=errno.ENOSPC)),
        ("write: short", Fault("write", short=True)),
        ("write#2: short ENOSPC", Fault("write", call=2, short=True, error=errno.ENOSPC)),
        ("write#4+: ENOSPC", Fault("write", call=4, count=None, error=errno.ENOSPC)),
        ("sync#2-5: delay 0.01", Fault("sync", call=2, count=4, delay_s=0.01)),
        ("replace: late EIO", Fault("replace", late=True, error=errno.EIO)),
        ("#17: EINTR", Fault(call=17, error=errno.EINTR)),
        ("segments/*.log: EIO", Fault(path="segments/*.log", error=errno.EIO)),
        (" : EIO", Fault(error=errno.EIO)),
        ("sync 0.log:delay 1 EIO", Fault("sync", path="0.log", delay_s=1, error=errno.EIO)),
        ("sync#1-2: EIO", Fault("sync", count=2, error=errno.EIO)),
    ],
)
def test_one_fault(text: str, fault: Fault) -> None:
    assert parse_faults(text) == [fault]
    assert parse_faults(str(fault)) == [fault]


def test_many_faults() -> None:
    assert parse_faults("\n  sync#1: EIO ;; write: short\n\n") == [
        Fault("sync", call=1, error=errno.EIO),
        Fault("write", short=True),
    ]
    assert parse_faults("") == []


@pytest.mark.parametrize(
    "text",
    [
        "sync",
        "sync:",
        "fsync: EIO",
        "sync: short",
        "sync: EVIL",
        "sync: E",
        "sync#0: EIO",
        "sync#3-2: EIO",
        "sync#x: EIO",
        "#3x: EIO",
        "sync: delay",
        "sync: delay soon",
        "write: late",
        "sync a b: EIO",
    ],
)
def test_what_is_not_a_fault(text: str) -> None:
    with pytest.raises(UsageError):
        parse_faults(text)


@given(
    operation=st.sampled_from([None, *OPERATIONS]),
    call=st.none() | st.integers(1, 99),
    count=st.none() | st.integers(1, 9),
    path=st.none() | st.sampled_from(["*.log", "a/b", "/x/0.log", "[ab]?"]),
    error=st.sampled_from([errno.EIO, errno.ENOSPC, errno.EINTR, errno.EROFS]),
    late=st.booleans(),
    delay_s=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_a_fault_prints_as_it_is_written(
    operation: str | None,
    call: int | None,
    count: int | None,
    path: str | None,
    error: int,
    late: bool,
    delay_s: float,
) -> None:
    fault = Fault(operation, call, count, path, error, late=late, delay_s=delay_s)
    assert parse_faults(str(fault)) == [fault]


def test_unknown_errors_and_sync_failures() -> None:
    with pytest.raises(UsageError):
        Fault(error=99999)
    with pytest.raises(UsageError):
        FaultyDisk(SimulatedDisk(), sync_failure="maybe")  # type: ignore[arg-type]


# --- what strikes what


def failures(disk: Disk, *acts: Callable[[], object]) -> list[int | None]:
    """The error number of each call, 0 where it worked."""
    found: list[int | None] = []
    for act in acts:
        try:
            act()
            found.append(0)
        except StorageError as error:
            found.append(error.errno)
    return found


def test_calls_are_counted_among_those_that_match() -> None:
    disk = FaultyDisk(SimulatedDisk(), "sync#2 b.log: EIO; write#3-4: ENOSPC")
    a, b = disk.create("/a.log"), disk.create("/b.log")
    acts = [lambda f=f: f.write(0, b"x") for f in (a, b, a, b, a)]
    assert failures(disk, *acts) == [0, 0, errno.ENOSPC, errno.ENOSPC, 0]
    assert failures(disk, a.sync, b.sync, a.sync, b.sync, b.sync) == [0, 0, 0, errno.EIO, 0]
    assert disk.calls == 12
    assert disk.fired == [
        "5 write /a.log: write#3-4: ENOSPC",
        "6 write /b.log: write#3-4: ENOSPC",
        "11 sync /b.log: sync#2 b.log: EIO",
    ]


def test_paths() -> None:
    disk = FaultyDisk(SimulatedDisk(), "create x/*.log: EIO; replace old: EACCES")
    disk.make_directory("/x")
    create = [lambda p=p: disk.create(p) for p in ("/x/0.log", "/x/old", "/0.log")]
    assert failures(disk, *create) == [errno.EIO, 0, 0]
    assert failures(disk, lambda: disk.replace("/x/old", "/new"), lambda: disk.replace("/0.log", "/1.log")) == [
        errno.EACCES,
        0,
    ]


def test_a_failed_call_did_nothing_and_a_late_one_did() -> None:
    under = SimulatedDisk()
    disk = FaultyDisk(under, "write#1: EIO; write#2: late EIO; replace#1: EIO; replace#2: late EIO")
    file = disk.create("/a")
    for data in (b"one", b"two"):
        with pytest.raises(StorageError):
            file.write(0, data)
    assert under.tree()["/a"] == b"two"
    for target in ("/b", "/c"):
        with pytest.raises(StorageError) as caught:
            disk.replace("/a", target)
        assert caught.value.path == target
    assert under.list("/") == [("c", 3)]


def test_short_writes() -> None:
    under = SimulatedDisk(keep_history=True)
    disk = FaultyDisk(under, "write: short")
    write_all(disk.create("/a"), 0, b"0123456789")
    assert under.tree()["/a"] == b"0123456789"
    assert [line.split()[-1] for line in under.history[1:]] == ["0+5", "5+2", "7+1", "8+1", "9+1"]


def test_a_disk_that_runs_full() -> None:
    under = SimulatedDisk()
    disk = FaultyDisk(under, "write#2: short; write#3+: ENOSPC")
    file = disk.create("/a")
    write_all(file, 0, b"1111")
    with pytest.raises(StorageError) as caught:
        write_all(file, 4, b"2222")
    assert caught.value.errno == errno.ENOSPC
    assert under.tree()["/a"] == b"111122"
    with pytest.raises(StorageError):
        file.write(6, b"3")


def test_a_write_that_fails_half_way() -> None:
    under = SimulatedDisk()
    file = FaultyDisk(under, "write: short ENOSPC").create("/a")
    with pytest.raises(StorageError):
        file.write(0, b"1234")
    assert under.tree()["/a"] == b"12"


def test_delays_do_not_hold_other_threads_up() -> None:
    disk = FaultyDisk(SimulatedDisk(), "sync: delay 0.2")
    file = disk.create("/a")
    threads = [threading.Thread(target=file.sync) for _ in range(8)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    file.write(0, b"x")
    assert time.monotonic() - began < 0.19
    for thread in threads:
        thread.join()
    assert 0.2 <= time.monotonic() - began < 1
    assert disk.calls == 10


# --- failed syncs


@pytest.mark.parametrize(("sync_failure", "left"), [("lost", b"old\0\0\0new"), ("kept", b"oldbadnew")])
def test_what_a_failed_sync_leaves(sync_failure: str, left: bytes) -> None:
    under = SimulatedDisk()
    disk = FaultyDisk(FaultyDisk(under), "sync#2: EIO", sync_failure=sync_failure)  # type: ignore[arg-type]
    file = disk.create("/a")
    write_all(file, 0, b"old")
    file.sync()
    disk.sync_directory("/")
    write_all(file, 3, b"bad")
    with pytest.raises(StorageError):
        file.sync()
    assert under.tree()["/a"] == b"oldbad"
    assert under.crash(CrashPattern("lost")).tree()["/a"] == b"old"
    assert under.crash(CrashPattern("kept")).tree()["/a"] == left[:-3].rstrip(b"\0")
    write_all(file, 6, b"new")
    file.sync()
    assert under.crash(CrashPattern("lost")).tree()["/a"] == left


def test_a_failed_sync_that_worked() -> None:
    under = SimulatedDisk()
    disk = FaultyDisk(under, "sync: late EIO; sync_directory: late EIO")
    file = disk.create("/a")
    write_all(file, 0, b"x")
    for act in (file.sync, lambda: disk.sync_directory("/")):
        with pytest.raises(StorageError):
            act()
    assert under.crash(CrashPattern()).tree()["/a"] == b"x"


# --- every call


def work(disk: Disk, root: str) -> None:
    """Calls each operation of the seam."""
    disk.make_directory(f"{root}/d")
    disk.lock_directory(f"{root}/d").release()
    lock = disk.lock(f"{root}/lock", b"me")
    gate = disk.gate(f"{root}/gate")
    gate.take(b"me")
    gate.release()
    file = disk.create(f"{root}/a")
    write_all(file, 0, b"hello")
    file.truncate(4)
    file.sync()
    file.size()
    file.close()
    disk.replace(f"{root}/a", f"{root}/d/a")
    disk.rename_new(f"{root}/d/a", f"{root}/d/b")
    disk.sync_directory(f"{root}/d")
    disk.open(f"{root}/d/b").close()
    disk.kind(f"{root}/d/b")
    disk.list(root, ["d"])
    disk.size(f"{root}/d/b")
    disk.map(f"{root}/d/b").close()
    page = disk.page(f"{root}/page", 8, writable=True)
    page.store(b"12345678")
    page.load()
    page.wait(bytes(8), 0.01)
    page.close()
    disk.remove(f"{root}/d/b")
    disk.directories(root)
    disk.specials(root)
    disk.space(root)
    disk.remove_directory(f"{root}/d")
    lock.release()


@pytest.mark.filterwarnings("ignore:.*this lock was dropped:ResourceWarning")  # by the call that fails
def test_every_call_can_fail(tmp_path: Path) -> None:
    """On either disk the n-th call raises what was asked for, with the path, and the calls before it worked."""
    calm = FaultyDisk(SimulatedDisk(), keep_history=True)
    work(calm, "/root")
    assert {line.split()[0] for line in calm.history} == set(OPERATIONS)
    assert len(calm.history) == calm.calls
    for call in range(1, calm.calls + 1):
        for under, root in ((SimulatedDisk(), "/root"), (PosixDisk(), str(tmp_path / str(call)))):
            disk = FaultyDisk(under, [Fault(call=call, error=errno.EIO)])
            with pytest.raises(StorageError) as caught:
                work(disk, root)
            assert caught.value.errno == errno.EIO
            assert (caught.value.path or "").startswith(root)
            assert disk.calls == call
            assert len(disk.fired) == 1
    del caught
    gc.collect()  # the locks that the failed calls left


def test_errors_are_those_of_the_real_disk(tmp_path: Path) -> None:
    faulty = FaultyDisk(SimulatedDisk(), "open: ENOENT")
    path = str(tmp_path / "missing")
    told = []
    for disk in (faulty, PosixDisk(), SimulatedDisk()):
        with pytest.raises(StorageError) as caught:
            disk.open(path)
        told.append((str(caught.value), caught.value.errno))
    assert told[0][0].endswith("missing: no such file or directory (check the path)")
    assert told[0] == told[1]
    faulty = FaultyDisk(SimulatedDisk(), "sync: EROFS")
    with pytest.raises(StorageError, match="read-only"):
        faulty.create("/a").sync()

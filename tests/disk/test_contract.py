"""What every disk does alike: the real one, the simulated one, and either behind a `FaultyDisk` without faults."""

from __future__ import annotations

import ctypes
import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from duramen.disk import PosixDisk, rename
from duramen.disk.vfs import Disk, Kind, write_all
from duramen.errors import FencedError, LockedError, StorageError
from duramen.testing.faulty_disk import FaultyDisk
from duramen.testing.simulated_disk import SimulatedDisk


@dataclass
class Place:
    """A disk and an empty directory on it."""

    disk: Disk
    root: str

    def __call__(self, name: str) -> str:
        return f"{self.root}/{name}"

    def put(self, name: str, data: bytes = b"") -> None:
        file = self.disk.create(self(name))
        write_all(file, 0, data)
        file.close()

    def get(self, name: str) -> bytes:
        return bytes(self.disk.map(self(name)).data)


@pytest.fixture(params=["posix", "simulated", "faulty posix", "faulty simulated"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    disk: Disk = PosixDisk() if "posix" in request.param else SimulatedDisk()
    if "faulty" in request.param:
        disk = FaultyDisk(disk)
    root = str(tmp_path) if "posix" in request.param else "/root"
    disk.make_directory(root)
    return Place(disk, root)


def refusal(act: Callable[[], object]) -> tuple[int | None, str | None]:
    with pytest.raises(StorageError) as caught:
        act()
    return caught.value.errno, caught.value.path


# --- files


def test_written_bytes_are_read(at: Place) -> None:
    file = at.disk.create(at("a"))
    assert file.size() == 0
    assert file.write(0, b"hello") == 5
    assert file.write(3, memoryview(b"LO!!")) == 4
    assert file.write(1, bytearray(b"E")) == 1
    file.sync()
    assert file.size() == at.disk.size(at("a")) == 7
    assert at.get("a") == b"hElLO!!"


def test_a_hole_reads_as_zeros(at: Place) -> None:
    file = at.disk.create(at("a"))
    file.write(3, b"x")
    assert at.get("a") == b"\0\0\0x"


def test_writing_nothing_changes_nothing(at: Place) -> None:
    file = at.disk.create(at("a"))
    assert file.write(10, b"") == 0
    assert file.size() == 0


def test_truncate_cuts_and_extends(at: Place) -> None:
    file = at.disk.create(at("a"))
    file.write(0, b"hello")
    file.truncate(2)
    file.truncate(4)
    assert at.get("a") == b"he\0\0"


def test_open_keeps_what_is_there(at: Place) -> None:
    at.put("a", b"hello")
    file = at.disk.open(at("a"))
    assert file.size() == 5
    file.write(5, b"!")
    assert at.get("a") == b"hello!"


def test_an_empty_file_maps(at: Place) -> None:
    at.put("a")
    mapped = at.disk.map(at("a"))
    assert bytes(mapped.data) == b""
    mapped.close()


def test_released_bytes_can_be_read_again(at: Place) -> None:
    content = bytes(range(256)) * 200
    at.put("a", content)
    mapped = at.disk.map(at("a"))
    assert bytes(mapped.data) == content
    for start, stop in ((0, len(content)), (1, 9000), (5000, 5001), (7, 7), (40_000, len(content) + 10**6)):
        mapped.release(start, stop)
        assert bytes(mapped.data) == content
    mapped.close()
    mapped.release(0, len(content))


def test_a_mapping_outlives_its_name(at: Place) -> None:
    at.put("a", b"old")
    at.put("b", b"new")
    mapped = at.disk.map(at("a"))
    data = mapped.data
    at.disk.replace(at("b"), at("a"))
    at.disk.remove(at("a"))
    mapped.close()
    mapped.close()
    assert bytes(data) == b"old"
    assert data.readonly


def test_a_removed_file_can_be_written(at: Place) -> None:
    file = at.disk.create(at("a"))
    at.disk.remove(at("a"))
    file.write(0, b"x")
    file.sync()
    assert file.size() == 1
    assert at.disk.kind(at("a")) == Kind.MISSING


def test_closing_twice_is_harmless_and_using_is_not(at: Place) -> None:
    file = at.disk.create(at("a"))
    file.close()
    file.close()
    for act in (lambda: file.write(0, b"x"), file.sync, lambda: file.truncate(0), file.size):
        assert refusal(act) == (errno.EBADF, at("a"))


def test_hints_change_nothing_and_never_fail(at: Place) -> None:
    file = at.disk.create(at("a"))
    file.write(0, b"abc")
    for hint in (lambda: file.begin_sync(0, 3), lambda: file.begin_sync(-1, 7), lambda: file.reserve(1 << 20)):
        hint()
        assert file.size() == 3
    assert bytes(at.disk.map(at("a")).data) == b"abc"
    file.sync()
    file.close()
    file.begin_sync(0, 3)
    file.reserve(1 << 20)


def test_negative_positions_are_refused(at: Place) -> None:
    file = at.disk.create(at("a"))
    assert refusal(lambda: file.write(-1, b"x")) == (errno.EINVAL, at("a"))
    assert refusal(lambda: file.truncate(-1)) == (errno.EINVAL, at("a"))


def test_write_all_from_any_buffer(at: Place) -> None:
    at.put("a", bytes(range(256)) * 300)
    assert at.get("a") == bytes(range(256)) * 300


# --- names


def test_kinds(at: Place) -> None:
    at.put("a")
    at.disk.make_directory(at("d/e"))
    assert at.disk.kind(at("a")) == Kind.FILE
    assert at.disk.kind(at("d")) == at.disk.kind(at("d/e")) == Kind.DIRECTORY
    assert at.disk.kind(at("b")) == at.disk.kind(at("x/y")) == Kind.MISSING


def test_list_is_sorted_and_goes_one_level_down(at: Place) -> None:
    at.disk.make_directory(at("segments/deep"))
    at.disk.make_directory(at("other"))
    for name in ("b", "a", "segments/2", "segments/1", "segments/deep/x", "other/y", "z"):
        at.put(name, b"x" * len(name))
    top = [("a", 1), ("b", 1), ("z", 1)]
    assert at.disk.list(at.root) == top
    inside = [("segments/1", 10), ("segments/2", 10)]
    assert at.disk.list(at.root, ["segments", "missing"]) == [*top[:2], *inside, top[2]]


def test_make_directory_makes_parents_and_may_be_repeated(at: Place) -> None:
    for _ in range(2):
        at.disk.make_directory(at("a/b/c"))
    at.put("a/b/c/x", b"1")
    assert at.disk.list(at("a/b/c")) == [("x", 1)]


def test_replace(at: Place) -> None:
    at.disk.make_directory(at("d"))
    at.put("a", b"1")
    at.disk.replace(at("a"), at("b"))
    assert at.disk.list(at.root) == [("b", 1)]
    at.put("d/c", b"22")
    at.disk.replace(at("d/c"), at("b"))
    assert at.get("b") == b"22"
    assert at.disk.list(at.root, ["d"]) == [("b", 2)]
    at.disk.replace(at("b"), at("b"))
    assert at.get("b") == b"22"


def test_rename_new_never_replaces(at: Place) -> None:
    at.put("a", b"one")
    at.put("b", b"two")
    at.disk.make_directory(at("d"))
    assert refusal(lambda: at.disk.rename_new(at("a"), at("b"))) == (errno.EEXIST, at("b"))
    assert refusal(lambda: at.disk.rename_new(at("a"), at("d"))) == (errno.EEXIST, at("d"))
    assert refusal(lambda: at.disk.rename_new(at("missing"), at("c"))) == (errno.ENOENT, at("missing"))
    assert (at.get("a"), at.get("b")) == (b"one", b"two")
    at.disk.rename_new(at("a"), at("d/c"))
    assert at.get("d/c") == b"one"
    assert at.disk.kind(at("a")) == Kind.MISSING


def test_rename_new_where_the_file_system_refuses_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems return EINVAL: a second link, which never replaces a file either."""

    def refuse(*_arguments: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    for call in (refuse, None):
        monkeypatch.setattr(rename, "_system_call", lambda call=call: call)
        (tmp_path / "a").write_bytes(b"one")
        (tmp_path / "b").write_bytes(b"two")
        with pytest.raises(StorageError) as caught:
            PosixDisk().rename_new(str(tmp_path / "a"), str(tmp_path / "b"))
        assert caught.value.errno == errno.EEXIST
        assert (tmp_path / "a").read_bytes() == b"one"
        PosixDisk().rename_new(str(tmp_path / "a"), str(tmp_path / "c"))
        assert (tmp_path / "c").read_bytes() == b"one"
        assert not (tmp_path / "a").exists()
        (tmp_path / "c").unlink()


def test_replace_moves_directories(at: Place) -> None:
    at.disk.make_directory(at("d"))
    at.disk.make_directory(at("empty"))
    at.put("d/x", b"1")
    at.disk.replace(at("d"), at("empty"))
    assert at.disk.list(at.root, ["d", "empty"]) == [("empty/x", 1)]


def test_directories_are_listed_in_order(at: Place) -> None:
    for name in ("b", "a/deep", "c"):
        at.disk.make_directory(at(name))
    at.put("file")
    assert at.disk.directories(at.root) == ["a", "b", "c"]
    assert at.disk.directories(at("b")) == []
    assert refusal(lambda: at.disk.directories(at("file"))) == (errno.ENOTDIR, at("file"))
    assert refusal(lambda: at.disk.directories(at("none"))) == (errno.ENOENT, at("none"))


def test_only_an_empty_directory_is_removed(at: Place) -> None:
    at.disk.make_directory(at("d"))
    at.put("d/x")
    assert refusal(lambda: at.disk.remove_directory(at("d"))) == (errno.ENOTEMPTY, at("d"))
    assert refusal(lambda: at.disk.remove_directory(at("d/x"))) == (errno.ENOTDIR, at("d/x"))
    at.disk.remove(at("d/x"))
    at.disk.remove_directory(at("d"))
    assert at.disk.kind(at("d")) == Kind.MISSING
    assert refusal(lambda: at.disk.remove_directory(at("d"))) == (errno.ENOENT, at("d"))


def test_sync_directory(at: Place) -> None:
    at.put("a")
    at.disk.sync_directory(at.root)
    assert refusal(lambda: at.disk.sync_directory(at("a"))) == (errno.ENOTDIR, at("a"))


def test_a_missing_path_is_refused(at: Place) -> None:
    disk, path = at.disk, at("missing")
    at.put("here")
    for act in (
        lambda: disk.open(path),
        lambda: disk.map(path),
        lambda: disk.size(path),
        lambda: disk.list(path),
        lambda: disk.remove(path),
        lambda: disk.sync_directory(path),
        lambda: disk.replace(path, at("here")),
        lambda: disk.page(path, 8, writable=False),
    ):
        assert refusal(act) == (errno.ENOENT, path)


def test_a_missing_directory_is_refused(at: Place) -> None:
    disk, path = at.disk, at("missing/a")
    at.put("here")
    for act in (
        lambda: disk.create(path),
        lambda: disk.replace(at("here"), path),
        lambda: disk.lock(path, b""),
        lambda: disk.page(path, 8, writable=True),
    ):
        assert refusal(act) == (errno.ENOENT, path)


def test_a_taken_name_is_refused(at: Place) -> None:
    at.put("a", b"1")
    at.disk.make_directory(at("d"))
    assert refusal(lambda: at.disk.create(at("a"))) == (errno.EEXIST, at("a"))
    assert refusal(lambda: at.disk.create(at("d"))) == (errno.EEXIST, at("d"))
    assert refusal(lambda: at.disk.make_directory(at("a"))) == (errno.EEXIST, at("a"))
    assert at.get("a") == b"1"


def test_a_file_is_no_directory(at: Place) -> None:
    disk, path = at.disk, at("a/b")
    at.put("a")
    assert disk.kind(path) == Kind.MISSING
    for act in (
        lambda: disk.create(path),
        lambda: disk.open(path),
        lambda: disk.map(path),
        lambda: disk.size(path),
        lambda: disk.list(path),
        lambda: disk.remove(path),
        lambda: disk.make_directory(path),
        lambda: disk.make_directory(path + "/c"),
        lambda: disk.lock(path, b""),
    ):
        assert refusal(act)[0] == errno.ENOTDIR
    assert refusal(lambda: disk.list(at("a"))) == (errno.ENOTDIR, at("a"))


def test_a_directory_is_no_file(at: Place) -> None:
    disk, path = at.disk, at("d")
    disk.make_directory(path)
    at.put("a")
    for act in (
        lambda: disk.open(path),
        lambda: disk.map(path),
        lambda: disk.remove(path),
        lambda: disk.replace(at("a"), path),
        lambda: disk.lock(path, b""),
        lambda: disk.page(path, 8, writable=True),
    ):
        assert refusal(act) == (errno.EISDIR, path)


def test_a_directory_replaces_only_an_empty_one(at: Place) -> None:
    at.disk.make_directory(at("d"))
    at.disk.make_directory(at("full"))
    at.put("full/x")
    at.put("a")
    assert refusal(lambda: at.disk.replace(at("d"), at("a"))) == (errno.ENOTDIR, at("a"))
    assert refusal(lambda: at.disk.replace(at("d"), at("full"))) == (errno.ENOTEMPTY, at("full"))
    assert refusal(lambda: at.disk.replace(at("d"), at("d/below"))) == (errno.EINVAL, at("d/below"))


# --- locks


def test_a_lock_is_held_once(at: Place) -> None:
    lock = at.disk.lock(at("lock"), b"pid 1")
    with pytest.raises(LockedError, match="held by another writer: pid 1") as caught:
        at.disk.lock(at("lock"), b"pid 2")
    assert caught.value.note == b"pid 1"
    assert (caught.value.path, caught.value.errno) == (at("lock"), errno.EWOULDBLOCK)
    assert at.get("lock") == b"pid 1"
    lock.release()
    lock.release()
    assert at.get("lock") == b""
    again = at.disk.lock(at("lock"), b"p3")
    lock.release()
    with pytest.raises(LockedError, match="p3"):
        at.disk.lock(at("lock"), b"")
    again.release()


def test_a_note_replaces_a_longer_one(at: Place) -> None:
    at.put("lock", b"a long note of one that was killed")
    lock = at.disk.lock(at("lock"), b"short")
    assert at.get("lock") == b"short"
    lock.release()


# --- gates


def test_a_gate_names_its_last_holder(at: Place) -> None:
    ours, theirs = at.disk.gate(at("gate")), at.disk.gate(at("gate"))
    assert not ours.take(b"ours")
    with pytest.raises(LockedError) as caught:
        theirs.take(b"theirs, and longer")
    assert (caught.value.note, caught.value.path) == (b"ours", at("gate"))
    assert at.disk.is_locked(at("gate"))
    ours.release()
    assert not at.disk.is_locked(at("gate"))
    assert ours.take(b"ours")
    ours.release()
    ours.release()
    assert not theirs.take(b"theirs, and longer")
    ours.release()  # not its lock: nothing happens
    with pytest.raises(LockedError, match="theirs"):
        ours.take(b"ours")
    theirs.release()
    assert not ours.take(b"ours")
    assert at.get("gate") == b"ours"
    ours.close()
    assert theirs.take(b"ours")
    theirs.close()


def test_a_gate_whose_file_is_removed_is_a_new_one(at: Place) -> None:
    ours, theirs = at.disk.gate(at("gate")), at.disk.gate(at("gate"))
    ours.take(b"ours")
    ours.release()
    at.disk.remove(at("gate"))
    assert not theirs.take(b"theirs")
    with pytest.raises(LockedError, match="theirs"):
        ours.take(b"ours")
    theirs.release()
    assert not ours.take(b"ours")
    ours.close()


def test_a_gate_and_a_lock_keep_each_other_out(at: Place) -> None:
    gate = at.disk.gate(at("gate"))
    gate.take(b"gate")
    with pytest.raises(LockedError, match="gate"):
        at.disk.lock(at("gate"), b"lock")
    gate.release()
    lock = at.disk.lock(at("gate"), b"lock")
    with pytest.raises(LockedError, match="lock"):
        gate.take(b"gate")
    lock.release()
    assert not gate.take(b"gate")
    gate.close()


# --- pages


def test_a_page_starts_with_zeros_and_is_shared(at: Place) -> None:
    writer = at.disk.page(at("page"), 16, writable=True)
    reader = at.disk.page(at("page"), 16, writable=False)
    assert writer.load() == reader.load() == bytes(16)
    writer.store(b"0123456789abcdef")
    assert writer.load() == reader.load() == b"0123456789abcdef"
    writer.close()
    assert at.disk.page(at("page"), 16, writable=True).load() == b"0123456789abcdef"
    assert at.disk.size(at("page")) == 20


def test_a_page_that_is_not_there_yet(at: Place) -> None:
    at.put("page", b"1234")
    assert refusal(lambda: at.disk.page(at("page"), 16, writable=False)) == (errno.ENODATA, at("page"))
    assert at.disk.page(at("page"), 16, writable=True).load() == bytes(16)


def test_a_page_takes_its_own_size_at_most(at: Place) -> None:
    page = at.disk.page(at("page"), 16, writable=True)
    with pytest.raises(ValueError, match="16 bytes cannot hold 17"):
        page.store(bytes(17))
    page.store(b"0123456789abcdef")
    page.store(b"abc")  # its first bytes: the others stay
    assert page.load() == b"abc3456789abcdef"


def test_a_reader_cannot_store(at: Place) -> None:
    at.disk.page(at("page"), 4, writable=True)
    page = at.disk.page(at("page"), 4, writable=False)
    assert refusal(lambda: page.store(b"abcd")) == (errno.EBADF, at("page"))


def test_a_closed_page(at: Place) -> None:
    page = at.disk.page(at("page"), 4, writable=True)
    page.close()
    page.close()
    assert refusal(page.load) == (errno.EBADF, at("page"))
    assert refusal(lambda: page.store(b"abcd")) == (errno.EBADF, at("page"))
    page.wait(bytes(4), 10)


def test_wait_ends_with_the_time(at: Place) -> None:
    page = at.disk.page(at("page"), 4, writable=True)
    began = time.monotonic()
    page.wait(bytes(4), 0.05)
    assert time.monotonic() - began >= 0.05
    page.wait(bytes(4), 0)
    page.wait(b"else", 10)


def test_wait_ends_with_a_store(at: Place) -> None:
    writer = at.disk.page(at("page"), 4, writable=True)
    reader = at.disk.page(at("page"), 4, writable=False)
    timer = threading.Timer(0.05, writer.store, [b"abcd"])
    timer.start()
    reader.wait(bytes(4), 3600)
    assert reader.load() == b"abcd"
    timer.join()


def test_a_store_of_the_same_bytes_wakes_no_reader(at: Place) -> None:
    page = at.disk.page(at("page"), 4, writable=True)
    timer = threading.Timer(0.02, page.store, [bytes(4)])
    timer.start()
    began = time.monotonic()
    page.wait(bytes(4), 0.1)
    assert time.monotonic() - began >= 0.1
    timer.join()


def test_closing_lets_waiters_go(at: Place) -> None:
    page = at.disk.page(at("page"), 4, writable=True)
    waiter = threading.Thread(target=page.wait, args=(bytes(4), 30))
    waiter.start()
    time.sleep(0.02)
    page.close()
    waiter.join(2)
    assert not waiter.is_alive()


# --- threads


def test_threads_write_one_file(at: Place) -> None:
    file = at.disk.create(at("a"))

    def fill(index: int) -> None:
        for step in range(50):
            write_all(file, (step * 8 + index) * 4, bytes([index]) * 4)
            if step % 10 == 0:
                file.sync()

    threads = [threading.Thread(target=fill, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert at.get("a") == b"".join(bytes([index]) * 4 for index in range(8)) * 50


def test_no_store_is_missed(at: Place) -> None:
    """A reader that waits for each change sees the last one, however fast they come."""
    writer = at.disk.page(at("page"), 4, writable=True)
    reader = at.disk.page(at("page"), 4, writable=False)
    last = (2000).to_bytes(4, "big")

    def follow() -> None:
        seen = bytes(4)
        while seen != last:
            reader.wait(seen, 3600)
            seen = reader.load()

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(1, 2001):
        writer.store(number.to_bytes(4, "big"))
    thread.join()


def test_the_room_of_a_disk_is_known(at: Place) -> None:
    total, free = at.disk.space(at.root)
    assert 0 < free <= total
    assert refusal(lambda: at.disk.space(at("nowhere"))) == (errno.ENOENT, at("nowhere"))


# --- what is locked, and where it is


def test_a_directory_is_locked_once_whatever_is_deleted_in_it(at: Place) -> None:
    at.put("lock")
    held = at.disk.lock_directory(at.root)
    assert held.is_exclusive
    at.disk.remove(at("lock"))
    with pytest.raises(LockedError) as caught:
        at.disk.lock_directory(at.root)
    assert (caught.value.note, caught.value.path) == (b"", at.root)
    at.disk.lock(at("lock"), b"me").release()  # a file in it has a lock of its own
    held.release()
    held.release()
    at.disk.lock_directory(at.root).release()


def test_a_lock_whose_file_stays(at: Place) -> None:
    lock = at.disk.lock(at("lock"), b"me")
    at.put("other")
    at.disk.remove(at("other"))
    assert lock.is_in_place()
    lock.check()
    lock.release()


@pytest.mark.parametrize("what", ["deleted", "replaced", "directory moved"])
def test_a_lock_whose_file_does_not_stay(at: Place, what: str) -> None:
    at.disk.make_directory(at("d"))
    lock = at.disk.lock(at("d/lock"), b"me")
    if what == "deleted":
        at.disk.remove(at("d/lock"))
    elif what == "replaced":
        at.put("new")
        at.disk.replace(at("new"), at("d/lock"))
    else:
        at.disk.replace(at("d"), at("e"))
    assert not lock.is_in_place()
    with pytest.raises(FencedError, match="the writer is fenced off"):
        lock.check()
    lock.release()


def test_a_directory_lock_whose_directory_is_replaced(at: Place) -> None:
    at.disk.make_directory(at("d"))
    disk = at.disk.rooted(at("d"))
    held = disk.lock_directory(at("d"))
    assert held.is_in_place()
    held.check()
    at.disk.replace(at("d"), at("moved"))
    at.disk.make_directory(at("d"))
    assert not held.is_in_place()
    with pytest.raises(FencedError):
        held.check()
    held.release()
    disk.unroot()

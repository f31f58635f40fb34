"""Cursors: stored positions that survive a crash, in every format, from several processes, under any name."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

import duramen
from duramen.consumers.cursors import cursors
from duramen.consumers.log import ConsumableLog, ConsumableWritableLog
from duramen.errors import CorruptionError, StorageError, UsageError
from duramen.log.recover import RecoveryCase
from duramen.log.verify.verify import verify_log
from duramen.names import check_name, decode_name, encode_name
from duramen.testing.crash import patterns
from duramen.testing.simulated_disk import SimulatedDisk
from tests.consumers.logs import FORMATS, make_log

HOSTILE = [
    "../../etc/passwd", "/absolute", "a/b", "..hidden", ".dot", "a\\b", "name with spaces", "ünïcödé 🌲", "%2e%2e%2f",
    "CON", "-rf", "~", "$(reboot)", "a%", "a_b-0_c", "x" * 200, "new.cursor.new", "lock",
]  # fmt: skip


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_position_is_kept_over_a_reopen(tmp_path: Path, format_name: str) -> None:
    root = make_log(tmp_path / "log", format_name, 3)
    with duramen.open(root, "a") as log:
        cursor = log.cursor("report")
        assert cursor.load() is None
        cursor.store(2)
        cursor.store(1)
        assert cursor.load() == 1
    with duramen.open(root) as log:
        assert log.cursor("report").load() == 1
        log.cursor("report").store(3)
        assert [(c.name, c.offset) for c in log.cursors()] == [("report", 3)]
        assert log.cursor("report").delete()
        assert not log.cursor("report").delete()
        assert log.cursor("report").load() is None
        assert log.cursors() == []


def test_a_reader_stores_while_a_writer_holds_the_log(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as writer, duramen.open(tmp_path / "log") as reader:
        reader.cursor("a").store(7)
        assert writer.cursor("a").load() == 7


def test_a_foreign_log_gets_no_trace_but_the_cursor(tmp_path: Path) -> None:
    """A log of another program, with a cursor beside it, is still followed and opened for append."""
    root = make_log(tmp_path / "log", "durable-log", 3)
    for path in sorted((root / ".duramen").iterdir()):
        path.unlink()
    (root / ".duramen").rmdir()
    with duramen.open(root) as log:
        assert log.cursor("a").load() is None
        assert not (root / ".duramen").exists()
        log.cursor("a").store(1)
        log.wait(0.01)
        log.wait(0.01)
    with duramen.open(root) as log:
        log.wait(0.01)
        log.wait(0.01)
        assert log.next_offset == 3
    with duramen.open(root, "a") as log:
        assert log.append(b"more") == 3
        assert log.cursor("a").load() == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_leaves_its_directory(tmp_path: Path, name: str) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        log.cursor(name).store(5)
        assert log.cursor(name).load() == 5
        assert [state.name for state in log.cursors()] == [name]
    found = {path.name for path in (tmp_path / "log" / ".duramen" / "cursors").iterdir()}
    assert found == {"lock", encode_name(name) + ".cursor"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
    assert decode_name(encode_name(name)) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "a\nb", "\x1b[2J", "\ud800", "x" * 201, "ü" * 40])
def test_names_that_no_file_can_have_are_refused(tmp_path: Path, name: str) -> None:
    with duramen.open(tmp_path / "log", "a") as log, pytest.raises(UsageError, match="name of a cursor"):
        log.cursor(name)


def test_a_name_is_text() -> None:
    with pytest.raises(UsageError, match=r"must be str \(got bytes\)"):
        check_name("group", b"raw")  # type: ignore[arg-type]


@pytest.mark.parametrize("encoded", ["", "a b", "%2f", "%61", "a%", "%FF", "a/b"])
def test_file_names_that_stand_for_no_name(encoded: str) -> None:
    assert decode_name(encoded) is None


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_offsets_are_checked(tmp_path: Path, offset: int) -> None:
    with duramen.open(tmp_path / "log", "a") as log, pytest.raises(UsageError, match="the offset of a cursor must be"):
        log.cursor("a").store(offset)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        cursor = log.cursor("a")
        cursor.store(77)
        whole = Path(cursor.path).read_bytes()
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            Path(cursor.path).write_bytes(damaged)
            with pytest.raises(CorruptionError) as caught:
                cursor.load()
            assert caught.value.path == cursor.path
        for size in range(len(whole)):
            Path(cursor.path).write_bytes(whole[:size])
            with pytest.raises(CorruptionError):
                cursor.load()
        log.cursor("b").store(1)
        states = cursors(log)
        assert [(s.name, s.offset) for s in states] == [("a", None), ("b", 1)]
        assert states[0].problem
        cursor.store(78)
        assert cursor.load() == 78


def test_a_file_under_anothers_name_is_refused(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        log.cursor("a").store(1)
        os.rename(log.cursor("a").path, log.cursor("b").path)
        with pytest.raises(CorruptionError, match="holds the cursor 'a'"):
            log.cursor("b").load()


@pytest.mark.unprivileged
def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "keratin", 1)
    with duramen.open(root) as log:
        os.chmod(root / ".duramen", 0o555)
        try:
            with pytest.raises(StorageError, match="permission denied"):
                log.cursor("a").store(1)
            assert log.cursor("a").load() is None
        finally:
            os.chmod(root / ".duramen", 0o755)


def test_a_single_file_has_no_cursors(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "durable-log", 1)
    with duramen.open(next(root.glob("*.log"))) as log, pytest.raises(UsageError, match="single segment file"):
        log.cursor("a")


def test_a_closed_log_gives_no_cursor(tmp_path: Path) -> None:
    log = duramen.open(tmp_path / "log", "a")
    log.close()
    with pytest.raises(UsageError, match="closed"):
        log.cursor("a")


def _store_many(root: str, name: str, first: int) -> None:
    with duramen.open(root) as log:
        for offset in range(first, first + 20):
            log.cursor(name).store(offset)


def test_threads_and_processes_store_at_once(tmp_path: Path) -> None:
    """What is read at any moment is one of the values that somebody stored, whole."""
    root = make_log(tmp_path / "log", "keratin", 1)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_store_many, args=(str(root), "shared", 1000 * n)) for n in (1, 2)]
    threads = [threading.Thread(target=_store_many, args=(str(root), "shared", 1000 * n)) for n in (3, 4)]
    for worker in (*processes, *threads):
        worker.start()
    with duramen.open(root) as log:
        while any(worker.is_alive() for worker in (*processes, *threads)):
            offset = log.cursor("shared").load()
            assert offset is None or (offset // 1000 in (1, 2, 3, 4) and offset % 1000 < 20)
        for worker in (*processes, *threads):
            worker.join()
        assert [process.exitcode for process in processes] == [0, 0]
        last = log.cursor("shared").load()
        assert last is not None
        assert last % 1000 == 19


def test_a_crash_anywhere_leaves_the_old_or_the_new_position() -> None:
    """Every operation of three stores and a delete, with what a power loss makes of each."""
    disk = SimulatedDisk()
    with ConsumableWritableLog("/log", format="keratin", disk=disk) as log:
        log.append(b"one")
        durable: int | None = None
        wanted: int | None = None
        images: list[tuple[SimulatedDisk, set[int | None]]] = []
        disk.on_operation = lambda number, what: images.append((disk.clone(), {durable, wanted}))
        for offset in (10, 20, 30):
            wanted = offset
            log.cursor("a").store(offset)
            durable = wanted
        wanted = None
        log.cursor("a").delete()
        durable = None
        disk.on_operation = None
    assert len(images) > 20
    for image, allowed in images:
        for pattern in patterns():
            with ConsumableLog("/log", disk=image.crash(pattern)) as crashed:
                assert crashed.cursor("a").load() in allowed


def test_a_torn_beginning_of_a_segment_costs_no_cursor() -> None:
    """An osiris segment begins with all cursors. Where that was longer than a sector and torn, the log did not open, or
    the cursors were gone with the next append."""
    disk = SimulatedDisk()
    log = ConsumableWritableLog("/log", disk=disk, format="osiris")
    log.append(b"one")
    names = [f"a cursor with a long name {number}" for number in range(40)]
    for name in names:
        log.cursor(name).store(1)
    clones = []
    disk.on_operation = lambda _number, _operation: clones.append(disk.clone())
    log.seal()
    disk.on_operation = None
    seen: set[bytes] = set()
    cases = set()
    for number, clone in enumerate(clones):
        for left in (clone.crash(pattern) for pattern in patterns(number, 12)):
            if left.digest() in seen:
                continue
            seen.add(left.digest())
            with ConsumableLog("/log", disk=left.clone()) as reader:
                assert [record.value for record in reader.scan()] == [b"one"]
                assert len(reader.cursors()) == len(names)
            assert verify_log("/log", disk=left.clone()).ok
            with ConsumableWritableLog("/log", disk=left) as log:
                cases |= {step.case for step in log.recovery}
                chunk_time_ms = int.from_bytes(left.map(log.segments[-1].path).data[8 + 8 : 8 + 16], "big")
                assert chunk_time_ms > 1_700_000_000_000, "a search by time goes by the first chunk of a segment"
                log.append(b"two")
                assert sorted(cursor.name for cursor in log.cursors()) == sorted(names)
                assert [record.value for record in log.scan()] == [b"one", b"two"]
            assert verify_log("/log", disk=left).ok
    assert RecoveryCase.NEVER_BEGUN in cases


def test_a_new_segment_without_its_beginning_hides_no_cursor_from_a_reader() -> None:
    """A crash while an osiris log rolls: who reads, and recovers nothing, finds what the segment before says."""
    disk = SimulatedDisk()
    log = ConsumableWritableLog("/log", disk=disk, format="osiris")
    log.append(b"one")
    log.cursor("c").store(1)
    log.producer("p").append(b"two", sequence=7)
    clones: list[SimulatedDisk] = []
    disk.on_operation = lambda _number, _operation: clones.append(disk.clone())
    log.seal()
    log.append(b"three")
    disk.on_operation = None
    assert len(log.segments) == 2
    found = set()
    for number, clone in enumerate(clones):
        for left in (clone, *(clone.crash(pattern) for pattern in patterns(number, 2))):
            with ConsumableLog("/log", disk=left) as reader:
                assert reader.cursor("c").load() == 1
                assert [(one.name, one.sequence) for one in reader.producers()] == [("p", 7)]
                found.add(reader.segments[-1].size_bytes)
    assert 0 in found

"""Other processes read while one writes: they see what is acknowledged, all of it, at once, and nothing else.

The writer is a process of its own that takes commands (`command_writer`), so that a test can stop it between the
write and the answer. Readers are this process, or more processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.disk import PosixDisk, posix_page
from duramen.disk.vfs import File
from duramen.formats import make
from duramen.log.read.log import FOLLOW_WAIT_S, Log
from duramen.log.write.writable_log import WritableLog
from tests.log.conftest import FORMATS, batch, codec, options, value

HERE = Path(__file__).parents[3]
SEGMENTED = tuple(name for name in FORMATS if make(name).capabilities.segments)
PATIENCE_S = 120
FOR_EVER_S = 3600.0


# --- processes


class Process:
    """A function of this module in a process of its own; lines go in, lines come out."""

    def __init__(self, function: str, *arguments: str) -> None:
        code = f"from tests.log.read.test_processes import {function}; {function}()"
        self._popen = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def say(self, line: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def hear(self) -> str:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert line, "the process ended"
        return line.strip()

    def ask(self, line: str) -> str:
        self.say(line)
        return self.hear()

    def end(self) -> int:
        """Close its input and wait."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        try:
            return self._popen.wait(PATIENCE_S)
        finally:
            self._popen.kill()
            self._popen.wait()
            self._popen.stdout.close()


@contextmanager
def process(function: str, *arguments: object) -> Iterator[Process]:
    running = Process(function, *map(str, arguments))
    try:
        yield running
    finally:
        status = running.end()
    assert status == 0


class GatedFile:
    """A file whose syncs wait for a word, when the gate is shut."""

    def __init__(self, disk: GatedDisk, inner: File) -> None:
        self._disk = disk
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sync(self) -> None:
        if self._disk.is_shut and Path(self._inner.path).suffix in (".log", ".segment"):
            sys.stdout.write("syncing\n")
            sys.stdout.flush()
            assert self._disk.word.acquire(timeout=PATIENCE_S)
        self._inner.sync()


class GatedDisk(PosixDisk):
    def __init__(self) -> None:
        super().__init__()
        self.is_shut = False
        self.word = threading.Semaphore(0)

    def create(self, path: str) -> Any:
        return GatedFile(self, super().create(path))

    def open(self, path: str) -> Any:
        return GatedFile(self, super().open(path))


def command_writer() -> None:
    """``append FIRST COUNT DURABILITY``, ``seal``, ``shut``, ``go``, until the input ends. Appends do not wait for the
    next command, so that ``go`` can reach one that is held."""
    path, name, segment_max_bytes = sys.argv[1:]
    disk = GatedDisk()
    more = {"segment_max_bytes": int(segment_max_bytes)} if name in SEGMENTED and segment_max_bytes != "0" else {}
    log = duramen.open(path, "a", format=name, disk=disk, **options(name), **more)
    threads: list[threading.Thread] = []

    def answer(text: object) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def append(first: int, count: int, durability: str) -> None:
        values = [value(n) for n in range(first, first + count)]
        if count == 1:
            answer(log.append(values[0], durability=durability))
        else:
            answer(log.append_batch(values, durability=durability).base_offset)

    answer("ready")
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "append":
            thread = threading.Thread(target=append, args=(int(rest[0]), int(rest[1]), rest[2]))
            thread.start()
            threads.append(thread)
        elif word == "seal":
            log.seal()
            answer("sealed")
        elif word == "shut":
            disk.is_shut = True
            answer("shut")
        elif word == "open":
            disk.is_shut = False
            answer("opened")
        elif word == "go":
            disk.word.release()
    disk.is_shut = False
    disk.word.release(100)
    for thread in threads:
        thread.join(PATIENCE_S)
    log.close()


@contextmanager
def writer(root: Path, name: str, segment_max_bytes: int = 0) -> Iterator[Process]:
    with process("command_writer", root, name, segment_max_bytes) as running:
        assert running.hear() == "ready"
        yield running


def sees(log: duramen.Log) -> int:
    """How many records a reader sees, by every way of looking."""
    log.refresh()
    found = [record.value for record in log.scan()]
    assert found == [value(n) for n in range(len(found))]
    assert log.next_offset == len(found)
    assert sum(some.num_rows for some in log.batches()) == len(found)
    with pytest.raises(duramen.OffsetError):
        log.read(len(found))
    if found:
        assert log.read(len(found) - 1).value == found[-1]
    return len(found)


def stored_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.suffix in (".log", ".segment"))


# --- what is not acknowledged does not exist


def test_a_record_is_not_seen_between_its_write_and_its_sync(tmp_path: Path, format_name: str) -> None:
    root = tmp_path / "log"
    with writer(root, format_name) as other:
        assert other.ask("append 0 1 fsync") == "0"
        with duramen.open(root) as before:
            assert sees(before) == 1
            for first, count in ((1, 1), (2, 5)):
                other.ask("shut")
                size = stored_bytes(root)
                assert other.ask(f"append {first} {count} fsync") == "syncing"
                assert stored_bytes(root) > size, "the bytes are in the file"
                assert sees(before) == first
                with duramen.open(root) as fresh:
                    assert sees(fresh) == first
                    assert fresh.durable_offset == first
                other.say("go")
                assert other.hear() == str(first)
                assert sees(before) == first + count
                assert other.ask("open") == "opened"
            assert other.ask("append 7 3 write") == "7"
            assert sees(before) == 10
            assert before.durable_offset == 7, "acknowledged, and not on the disk yet"


def test_a_reader_that_was_there_before_the_sidecar(tmp_path: Path) -> None:
    """A log of another program is opened for reading; then Duramen appends to it."""
    root = tmp_path / "log"
    (root / "segments").mkdir(parents=True)
    fmt = codec("keratin")
    for path, content in fmt.build([batch(fmt, 0, 5)]):
        (root / path).write_bytes(content)
    with duramen.open(root) as log:
        assert sees(log) == 5
        assert log.durable_offset == 5
        with writer(root, "keratin") as other:
            other.ask("shut")
            assert other.ask("append 5 1 fsync") == "syncing"
            assert sees(log) == 5
            other.say("go")
            assert other.hear() == "5"
            assert sees(log) == 6


@pytest.mark.parametrize("name", [name for name in SEGMENTED if name != "osiris"])
def test_a_batch_over_several_segments_is_seen_as_a_whole(tmp_path: Path, name: str) -> None:
    """The first part is sealed and durable before the last one is written, and still nobody was told of it."""
    root = tmp_path / "log"
    with writer(root, name, 500) as other:
        assert other.ask("append 0 1 fsync") == "0"
        with duramen.open(root) as log:
            other.ask("shut")
            other.say("append 1 40 fsync")
            syncs = 0
            while (line := other.hear()) == "syncing":
                assert sees(log) == 1, f"after {syncs} syncs"
                syncs += 1
                other.say("go")
            assert line == "1"
            assert syncs > 3
            assert sees(log) == 41


# --- readers keep up


def test_a_reader_keeps_what_it_has_when_the_log_rolls(tmp_path: Path, format_name: str) -> None:
    root = tmp_path / "log"
    with writer(root, format_name, 600) as other:
        assert other.ask("append 0 10 fsync") == "0"
        with duramen.open(root) as log:
            scan = log.scan()
            assert next(scan).value == value(0)
            assert log.read(9).value == value(9)
            for first in range(10, 60, 10):
                assert other.ask(f"append {first} 10 write") == str(first)
            if format_name in SEGMENTED:
                assert other.ask("seal") == "sealed"
            assert [record.value for record in scan] == [value(n) for n in range(1, 10)]
            assert log.read(9).value == value(9), "nothing of the old view is gone"
            assert sees(log) == 60
    with duramen.open(root) as log:
        assert sees(log) == 60


def test_a_reader_lives_through_a_crash_and_a_recovery(tmp_path: Path, format_name: str) -> None:
    """A torn tail is there, is never shown, and is cut while the reader has the file mapped."""
    root = tmp_path / "log"
    with duramen.open(root, "a", format=format_name, **options(format_name)) as log:
        log.append_batch([value(n) for n in range(10)])
        active = Path(log.segments[-1].path)
        # As a killed process leaves it: open, with bytes behind the watermark.
        crashed = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    for path, content in crashed.items():
        path.write_bytes(content)
    with active.open("ab") as file:
        file.write(b"\x01" * 5000)
    with duramen.open(root) as reader:
        assert sees(reader) == 10
        scan = reader.scan()
        next(scan)
        with duramen.open(root, "a") as log:
            assert active.stat().st_size < 5000
            assert len(list(scan)) == 9
            assert sees(reader) == 10
            log.append(value(10))
            assert sees(reader) == 11


def busy_writer() -> None:
    """Append to five logs in turn until the input ends."""
    logs = {}
    for name in FORMATS:
        more = {"segment_max_bytes": 2000} if name in SEGMENTED else {}
        logs[name] = duramen.open(f"{sys.argv[1]}/{name}", "a", format=name, **options(name), **more)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    number = 0
    while not stop.is_set():
        for log in logs.values():
            count = 1 + number % 7
            log.append_batch(
                [value(n) for n in range(log.next_offset, log.next_offset + count)],
                durability="fsync" if number % 5 == 0 else "write",
            )
        number += 1
        time.sleep(0.001)
    for log in logs.values():
        log.close()


def busy_reader() -> None:
    """Look at five growing logs in turn: each is a beginning without a gap, and never gets shorter."""
    logs = {name: duramen.open(f"{sys.argv[1]}/{name}") for name in FORMATS}
    known = dict.fromkeys(FORMATS, 0)
    looks = 0
    while looks < 100 or not all(known.values()):
        for name, log in logs.items():
            log.refresh()
            found = [record.value for record in log.scan(max(0, known[name] - 50))]
            first = max(0, known[name] - 50)
            assert found == [value(n) for n in range(first, first + len(found))], name
            assert first + len(found) >= known[name], f"{name} got shorter"
            known[name] = first + len(found)
            if found:
                assert log.read(known[name] - 1).value == found[-1]
        looks += 1
    sys.stdout.write(" ".join(map(str, known.values())) + "\n")
    sys.stdout.flush()


@pytest.mark.slow
def test_many_readers(tmp_path: Path) -> None:
    with process("busy_writer", tmp_path) as writing:
        assert writing.hear() == "ready"
        readers = [Process("busy_reader", str(tmp_path)) for _ in range(3)]
        seen = [list(map(int, reader.hear().split())) for reader in readers]
        assert [reader.end() for reader in readers] == [0, 0, 0]
    for index, name in enumerate(FORMATS):
        with duramen.open(tmp_path / name) as log:
            count = sees(log)
        assert all(0 < found[index] <= count for found in seen), name
        report = duramen.verify(tmp_path / name)
        assert report.ok, report.findings


# --- following


def wait_for_ever() -> None:
    """From here on a follower sees a record only if the writer wakes it."""
    posix_page._SLEEP_S = FOR_EVER_S
    for kind in (Log, WritableLog):
        kind.wait.__defaults__ = (FOR_EVER_S, None)  # type: ignore[attr-defined]


@pytest.fixture
def woken_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix_page, "_SLEEP_S", FOR_EVER_S)
    for kind in (Log, WritableLog):
        monkeypatch.setattr(kind.wait, "__defaults__", (FOR_EVER_S, None))


def follower() -> None:
    """Follow a log; for every record: its offset, and how often the scan has waited so far."""
    path, count, *woken_only = sys.argv[1:]
    if woken_only:
        wait_for_ever()
    log = duramen.open(path)
    waits = 0

    def wait(*given: Any, **named: Any) -> object:
        nonlocal waits
        waits += 1
        return type(log).wait(log, *given, **named)

    log.wait = wait  # type: ignore[method-assign]
    scan = log.scan(follow=True, max_records=int(count))
    assert next(scan).offset == 0
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for record in scan:
        sys.stdout.write(f"{record.offset} {waits}\n")
        sys.stdout.flush()


@pytest.mark.slow
def test_a_follower_wakes_up_at_once_and_does_not_spin(tmp_path: Path, format_name: str) -> None:
    """Nothing but the writer wakes it here, so a wake-up that is lost would stop it for ever."""
    root = tmp_path / "log"
    with duramen.open(root, "a", format=format_name, **options(format_name)) as log:
        log.append(value(0))
        with process("follower", root, 21, "woken only") as following:
            assert following.hear() == "ready"
            for number in range(1, 21):
                if number == 4 and format_name in SEGMENTED:
                    log.seal()
                log.append(value(number), durability="write" if number % 2 else "fsync")
                offset, waits = following.hear().split()
                assert int(offset) == number
    assert int(waits) <= 3 * 20, "it does not spin"


def test_following_over_many_rolls(tmp_path: Path) -> None:
    """The follower is slower than the writer, then faster; segments come and go under its feet."""
    root = tmp_path / "log"
    with duramen.open(root, "a", format="rustlog", segment_max_bytes=300) as log:
        log.append(value(0))
        with process("follower", root, 301) as following:
            assert following.hear() == "ready"
            for number in range(1, 301):
                log.append(value(number), durability="write")
            assert [int(following.hear().split()[0]) for _ in range(300)] == list(range(1, 301))


def test_following_from_one_writer_to_the_next(tmp_path: Path) -> None:
    """A writer is closed, another one opens the log: whoever follows does not notice."""
    root = tmp_path / "log"
    duramen.open(root, "a").close()
    with duramen.open(root, "a") as log:
        log.append(value(0))
    with process("follower", root, 31) as following:
        assert following.hear() == "ready"
        for first in range(1, 31, 10):
            with duramen.open(root, "a") as log:
                for number in range(first, first + 10):
                    log.append(value(number), durability="write")
        assert [int(following.hear().split()[0]) for _ in range(30)] == list(range(1, 31))


def test_following_a_log_of_another_program(tmp_path: Path) -> None:
    """No sidecar tells of the end, so the file is looked at."""
    fmt = codec("durable-log")
    root = tmp_path / "log"
    root.mkdir()
    for path, content in fmt.build([batch(fmt, 0, 3)]):
        (root / path).write_bytes(content)
    whole = dict(fmt.build([batch(fmt, 0, 6)]))
    with process("follower", root, 6) as following:
        assert following.hear() == "ready"
        assert [int(following.hear().split()[0]) for _ in range(2)] == [1, 2]
        (segment,) = (path for path in whole if path.endswith(".log"))
        with (root / segment).open("r+b") as file:
            raw = whole[segment]
            cut = len(raw) - 10
            file.write(raw[:cut])
            file.flush()
            time.sleep(0.15)
            os.pwrite(file.fileno(), raw[cut:], cut)
        assert [int(following.hear().split()[0]) for _ in range(3)] == [3, 4, 5]
    assert not (root / ".duramen").exists(), "reading leaves no trace"


@pytest.mark.usefixtures("woken_only")
@pytest.mark.parametrize("is_writer", [True, False])
def test_all_followers_of_one_log_are_woken(tmp_path: Path, is_writer: bool) -> None:
    """Each looks for itself whether there is more: another thread that has seen it already does not count."""
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"0")
        source = log if is_writer else duramen.open(tmp_path / "log")
        arrived: list[threading.Event] = [threading.Event() for _ in range(50 * 4)]

        def follow(number: int) -> None:
            for record in source.scan(from_offset=1, to_offset=51, follow=True):
                arrived[4 * (record.offset - 1) + number].set()

        threads = [threading.Thread(target=follow, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for offset in range(1, 51):
            log.append(b"%d" % offset)
            assert all(event.wait(PATIENCE_S) for event in arrived[4 * offset - 4 : 4 * offset])
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
        source.close()


def test_threads_that_share_a_reader_judge_by_what_each_of_them_saw(tmp_path: Path) -> None:
    """A thread held the end of the file that it had mapped against the watermark that another thread read later."""
    errors: list[BaseException] = []
    with duramen.open(tmp_path / "log", "a") as log, duramen.open(tmp_path / "log") as reader:

        def follow() -> None:
            try:
                assert len(list(reader.scan(to_offset=300, follow=True))) == 300
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=follow) for _ in range(8)]
        for thread in threads:
            thread.start()
        for offset in range(300):
            log.append(b"%d" % offset)
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
    assert errors == []


@pytest.mark.parametrize("is_writer", [True, False])
def test_a_log_that_is_closed_while_threads_follow_it(tmp_path: Path, is_writer: bool) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"0")
        source = log if is_writer else duramen.open(tmp_path / "log")
        errors: list[BaseException] = []

        def follow() -> None:
            try:
                list(source.scan(follow=True))
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=follow) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        source.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert [str(error) for error in errors] == [f"{tmp_path / 'log'}: the log is closed"] * 4
        with pytest.raises(duramen.UsageError, match="closed"):
            source.wait()


def test_a_fetch_waits_for_its_timeout(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        group = log.group("g")
        group.fetch(1)
        began = time.monotonic()
        for _ in range(20):
            assert group.fetch(1, timeout_s=0.001) == []
        assert time.monotonic() - began < 20 * FOLLOW_WAIT_S, "it does not wait as long as a follower"

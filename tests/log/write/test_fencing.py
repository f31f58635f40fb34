"""Two writers never both acknowledge, and a writer whose directory is deleted or replaced acknowledges nothing more.

The first writer is a process of its own that takes commands; this process does to its directory what the scene says,
and is the second writer. The process is started once for all scenes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.disk import DiskRecordWriter, PosixDisk, posix
from duramen.errors import FencedError, LockedError, StorageError
from duramen.log.maintain.compact import Compaction
from duramen.log.maintain.retention import Retention
from duramen.log.write.transaction import TransactionPart, commit_batch
from duramen.sidecar.tx_ledger import BatchKey
from tests.log.conftest import FORMATS, options, value
from tests.log.writing import SEGMENTED, content, snapshot, values

HERE = Path(__file__).parents[3]


class Other:
    """A process with one log open for append."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.log.write.test_fencing import serve; serve()"],
            cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def __call__(self, *command: Any) -> Any:
        """The result of a command, or ``[name, message]`` of its error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(word) for word in command]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process ended"
        return json.loads(line)

    def end(self) -> None:
        self._process.communicate()


def serve() -> None:
    logs: list[duramen.WritableLog] = []

    def open_log(path: str, name: str, *limits: str) -> None:
        more = {} if not limits else {"segment_max_bytes": int(limits[0])}
        logs[:] = [duramen.open(path, "a", format=name, **options(name), **more)]

    def append(first: str, count: str = "1", durability: str = "fsync") -> int:
        return logs[0].append_batch(values(int(first), int(count)), durability=durability).base_offset

    commands: dict[str, Callable[..., Any]] = {
        "open": open_log,
        "append": append,
        "close": lambda: logs[0].close(),
        "seal": lambda: logs[0].seal(),
        "pid": os.getpid,
    }
    for line in sys.stdin:
        word, *rest = json.loads(line)
        try:
            result: Any = commands[word](*rest)
        except duramen.DuramenError as error:
            result = [type(error).__name__, str(error)]
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


@pytest.fixture(scope="module")
def process() -> Iterator[Other]:
    running = Other()
    yield running
    running.end()


@pytest.fixture
def other(process: Other) -> Iterator[Other]:
    yield process
    process("close")


def is_fenced(result: Any) -> bool:
    return isinstance(result, list) and result[0] == "FencedError"


def replace_by_copy(path: Path, old: Path) -> None:
    copy = Path(shutil.copytree(path, old.with_name("copied"), symlinks=True))
    path.rename(old)
    copy.rename(path)


def replace_lock(root: Path) -> None:
    (root / ".duramen/lock.new").write_bytes(b"")
    (root / ".duramen/lock.new").replace(root / ".duramen/lock")


SIDECAR_SCENES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda root: shutil.rmtree(root / ".duramen"),
    "moved away": lambda root: (root / ".duramen").rename(root.with_name("elsewhere")),
    "replaced by a copy": lambda root: replace_by_copy(root / ".duramen", root.with_name("was")),
    "replaced by an empty one": lambda root: (
        (root / ".duramen").rename(root.with_name("was")),
        (root / ".duramen").mkdir(),
    ),
    "lock deleted": lambda root: (root / ".duramen/lock").unlink(),
    "lock replaced": replace_lock,
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("scene", SIDECAR_SCENES)
def test_the_sidecar_is_deleted_or_replaced_under_a_writer(tmp_path: Path, other: Other, scene: str, name: str) -> None:
    """A second writer opened, and both acknowledged the same offsets."""
    root = tmp_path / "log"
    other("open", root, name)
    assert other("append", 0, 3) == 0
    SIDECAR_SCENES[scene](root)
    with pytest.raises(LockedError, match="the log is open for writing elsewhere") as caught:
        duramen.open(root, "a")
    assert caught.value.path == str(root)
    for durability in ("fsync", "write"):
        assert is_fenced(other("append", 3, 1, durability))
    assert is_fenced(other("seal")) or name == "fixed-slot"
    with pytest.raises(LockedError):  # it holds the log until it is closed
        duramen.open(root, "a")
    assert other("close") is None
    with duramen.open(root, "a", format=name, **options(name)) as log:
        assert log.append(value(3)) == 3  # nothing but what was acknowledged is there
    assert content(root) == values(0, 4)


def test_the_note_of_the_first_writer_is_not_mapped(
    tmp_path: Path, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first writer empties it when it ends. A mapping would then end this process by SIGBUS."""
    mapped: list[str] = []
    map_file = PosixDisk.map

    def noted(disk: PosixDisk, path: str) -> Any:
        mapped.append(Path(path).name)
        return map_file(disk, path)

    root = tmp_path / "log"
    other("open", root, "keratin")
    monkeypatch.setattr(PosixDisk, "map", noted)
    with pytest.raises(LockedError, match=f"pid {other('pid')}"):
        duramen.open(root, "a")
    assert "lock" not in mapped


def test_the_error_for_a_second_writer(tmp_path: Path, other: Other) -> None:
    root = tmp_path / "log"
    other("open", root, "keratin")
    with pytest.raises(LockedError) as caught:
        duramen.open(root, "a")
    assert str(caught.value) == (
        f"{root}: the log is open for writing elsewhere (pid {other('pid')}) "
        "(close it there, or open it here for reading)"
    )
    shutil.rmtree(root / ".duramen")
    with pytest.raises(LockedError) as caught:
        duramen.open(root, "a")
    assert str(caught.value) == (
        f"{root}: the log is open for writing elsewhere (another process) (close it there, or open it here for "
        "reading; where no such process is known, it lost its `.duramen/`: `fuser` on the directory names it)"
    )
    assert not (root / ".duramen").exists()  # who was refused has changed nothing
    assert other("append", 0) == [
        "FencedError",
        f"{root}/.duramen/lock: the writer is fenced off: this was deleted, or its directory was (close the "
        "log, see what happened to its directory, and open it again: that runs recovery)",
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_the_log_is_moved_and_another_takes_its_place(tmp_path: Path, other: Other, name: str) -> None:
    """The first writer's next segments were created inside the other log."""
    root, moved = tmp_path / "log", tmp_path / "moved"
    other("open", root, name, *(["200"] if name in SEGMENTED else []))
    assert other("append", 0, 3) == 0
    root.rename(moved)
    with duramen.open(root, "a", format=name, **options(name)) as log:
        log.append_batch(values(100, 5))
    before = snapshot(root)
    result = other("append", 3, 50)
    assert is_fenced(result)
    assert "another directory has taken the place of the log's" in result[1]
    assert is_fenced(other("append", 3, 50, "write"))
    assert other("close") is None
    assert snapshot(root) == before
    assert content(root) == values(100, 5)
    assert duramen.verify(root).ok
    assert content(moved) == values(0, 3)


@pytest.mark.parametrize("name", FORMATS)
def test_the_log_is_moved(tmp_path: Path, other: Other, name: str) -> None:
    """The writer goes on in the moved directory, also with new segments, and creates nothing at the old path."""
    root, moved = tmp_path / "log", tmp_path / "moved"
    other("open", root, name, *(["200"] if name in SEGMENTED else []))
    assert other("append", 0, 3) == 0
    root.rename(moved)
    assert other("append", 3, 50) == 3
    assert other("append", 53, 1, "write") == 53
    with pytest.raises(LockedError):
        duramen.open(moved, "a")
    assert other("close") is None
    assert not root.exists()
    assert content(moved) == values(0, 54)
    assert duramen.verify(moved).ok


@pytest.mark.parametrize("name", FORMATS)
def test_the_directory_is_deleted(tmp_path: Path, other: Other, name: str) -> None:
    root = tmp_path / "log"
    other("open", root, name)
    assert other("append", 0) == 0
    shutil.rmtree(root)
    result = other("append", 1)
    assert is_fenced(result)
    assert "was deleted" in result[1]
    with duramen.open(root, "a", format=name, **options(name)) as log:  # another log, of another directory
        assert log.append(value(0)) == 0
    before = snapshot(root)
    assert is_fenced(other("append", 1))
    assert other("close") is None
    assert snapshot(root) == before


@pytest.mark.parametrize("name", FORMATS)
def test_the_directory_is_replaced_by_a_copy(tmp_path: Path, other: Other, name: str) -> None:
    root = tmp_path / "log"
    other("open", root, name)
    assert other("append", 0, 3) == 0
    replace_by_copy(root, root.with_name("was"))
    assert is_fenced(other("append", 3))
    with duramen.open(root, "a") as log:
        assert log.append(value(3)) == 3
    assert is_fenced(other("append", 3))
    assert other("close") is None
    assert content(root) == values(0, 4)
    assert content(tmp_path / "was") == values(0, 3)


def test_the_directory_is_replaced_by_links_to_its_files(tmp_path: Path, other: Other) -> None:
    """The lock's file is the same one there: a second writer is kept out, and the first is told at its next segment."""
    root, linked = tmp_path / "log", tmp_path / "linked"
    other("open", root, "durable-log")
    assert other("append", 0) == 0
    shutil.copytree(root, linked, copy_function=os.link)
    root.rename(tmp_path / "was")
    linked.rename(root)
    with pytest.raises(LockedError):
        duramen.open(root, "a")
    result = other("seal")
    assert is_fenced(result)
    assert "another directory has taken the place" in result[1]


def test_a_link_to_the_log_is_switched(tmp_path: Path, other: Other) -> None:
    for version in ("one", "two"):
        duramen.open(tmp_path / version, "a").close()
    (tmp_path / "current").symlink_to("one")
    other("open", tmp_path / "current", "keratin")
    assert other("append", 0) == 0
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(tmp_path / "current")
    assert is_fenced(other("append", 1))
    with duramen.open(tmp_path / "current", "a") as log:
        assert log.append(value(0)) == 0
    assert other("close") is None
    assert content(tmp_path / "one") == [value(0)]


# --- every way to commit something


def compacting(log: Any) -> None:
    log.compact(Compaction(key="key"))


WAYS: dict[str, Callable[[Any], object]] = {
    "append": lambda log: log.append(b"v"),
    "append at write": lambda log: log.append(b"v", durability="write"),
    "batch": lambda log: log.append_batch([b"v"]),
    "once": lambda log: log.append_once([[b"v"]], writer="w", batch=1),
    "sync": lambda log: log.sync(),
    "seal": lambda log: log.seal(),
    "retain": lambda log: log.retain(Retention(max_bytes=1)),
    "compact": compacting,
    "producer": lambda log: log.producer("p").append(b"v"),
    "group": lambda log: log.group("g").fetch(1),
    "ack": lambda log: log.held(),
    "cursor": lambda log: log.cursor("c").store(1),
    "close": lambda log: log.close(),
}


def loaded(root: Path, name: str) -> Any:
    log: Any = duramen.open(root, "a", format=name)
    for _ in range(4):
        log.append_batch([b"v"] * 3) if not log.codec.capabilities.key else [
            log.append(b"v", key=b"k") for _ in range(3)
        ]
        log.seal()
    log.append(b"v")
    log.producer("p").append(b"v")
    hold(log)
    return log


def hold(log: Any) -> None:
    group = log.group("g")
    deliveries = group.fetch(1)
    log.held = lambda: group.ack_many(deliveries)


@pytest.mark.parametrize("scene", ["deleted", "replaced by a copy"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["keratin", "osiris"])
def test_nothing_is_committed_after_the_sidecar_is_replaced(tmp_path: Path, name: str, way: str, scene: str) -> None:
    if way == "compact" and name == "osiris":
        pytest.skip("osiris has no keys")
    root = tmp_path / "log"
    log = loaded(root, name)
    SIDECAR_SCENES[scene](root)
    before = snapshot(root)
    with pytest.raises(FencedError):
        WAYS[way](log)
    assert log.is_poisoned
    log.close()
    assert snapshot(root) == before
    with duramen.open(root, "a") as log:
        assert log.append(b"v") == 14


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_created_where_another_log_is_now(tmp_path: Path, way: str) -> None:
    root = tmp_path / "log"
    log = loaded(root, "keratin")
    root.rename(tmp_path / "moved")
    duramen.open(root, "a").close()
    before = snapshot(root)
    with pytest.raises(FencedError):
        WAYS[way](log)
    log.close()
    assert snapshot(root) == before


@pytest.mark.parametrize("way", ["group", "ack", "cursor"])
def test_consumers_create_nothing_where_another_log_is_now(tmp_path: Path, way: str) -> None:
    """They need no writer's lock: the log is open for reading."""
    root = tmp_path / "log"
    loaded(root, "keratin").close()
    with duramen.open(root) as reading:
        log: Any = reading
        hold(log)
        replace_by_copy(root, root.with_name("was"))
        before = snapshot(root)
        with pytest.raises(StorageError, match="another directory has taken the place of the log's"):
            WAYS[way](log)
        assert snapshot(root) == before


# --- in the middle of a commit


class Acting(PosixDisk):
    """Does something the next time a segment is synced."""

    act: Callable[[], object] | None = None

    def record_writer(self, *given: Any) -> Any:
        return DiskRecordWriter(*given)

    def open(self, path: str) -> Any:
        file = super().open(path)
        return self._watched(file)

    def create(self, path: str) -> Any:
        return self._watched(super().create(path))

    def _watched(self, file: Any) -> Any:
        sync = file.sync

        def acting() -> None:
            sync()
            if self.act is not None and file.path.endswith((".log", ".segment")):
                act, self.act = self.act, None
                act()

        file.sync = acting
        return file


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("scene", ["deleted", "replaced by a copy", "lock replaced"])
def test_the_sidecar_is_replaced_during_the_sync(tmp_path: Path, name: str, scene: str) -> None:
    """The records are written, and not acknowledged: no reader sees them, and the caller gets the error."""
    root, disk = tmp_path / "log", Acting()
    with duramen.open(root, "a", format=name, disk=disk, **options(name)) as log:
        log.append(value(0))
        disk.act = lambda: SIDECAR_SCENES[scene](root)
        with pytest.raises(FencedError):
            log.append(value(1))
        assert log.next_offset == 1
        assert [record.value for record in log.scan()] == [value(0)]
        with pytest.raises(FencedError):
            log.append(value(1))


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("replaces", [True, False])
def test_a_transaction_whose_log_is_replaced_before_its_commit(tmp_path: Path, single: bool, replaces: bool) -> None:
    root = tmp_path / "store" / "a"
    with duramen.open(root, "a") as log:
        log.append(b"old")
    place, paths = (root, [""]) if single else (root.parent, ["a", "b"])
    replacing = threading.Lock()  # the parts of a transaction are written by threads

    def rows() -> Iterator[list[bytes]]:
        yield [b"new"] * 5
        with replacing:
            if not root.with_name("was").exists():
                replace_by_copy(root, root.with_name("was"))

    parts = [TransactionPart(path, rows, {"format": "keratin"}, replaces=replaces) for path in paths]
    with pytest.raises(FencedError):
        commit_batch(str(place), BatchKey("job", 0, "a"), parts)
    for path in (root, root.with_name("was")):
        with duramen.open(path, "a") as log:
            assert [record.value for record in log.scan()] == [b"old"]


def test_a_failed_write_into_a_deleted_directory_says_why(tmp_path: Path) -> None:
    """A batch that goes over many segments: the next one cannot be created, and that is not the reason."""
    root, disk = tmp_path / "log", Acting()
    log = duramen.open(root, "a", format="durable-log", disk=disk, segment_max_bytes=200)
    disk.act = lambda: shutil.rmtree(root)
    with pytest.raises(FencedError, match="the log's directory was deleted"):
        log.append_batch(values(0, 50))
    log.close()
    assert not root.exists()


# --- without a lock on directories


@pytest.fixture
def no_directory_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that refuses them."""
    real = posix.fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(9, "Bad file descriptor")
        real(descriptor, operation)

    monkeypatch.setattr(posix.fcntl, "flock", flock)


@pytest.mark.usefixtures("no_directory_locks")
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_system_that_locks_no_directories(tmp_path: Path, name: str) -> None:
    """The file's lock alone keeps others out, and without it the first writer stops before it writes."""
    root = tmp_path / "log"
    log = duramen.open(root, "a", format=name, **options(name))
    log.append(value(0))
    with pytest.raises(LockedError, match="already open for writing in this process"):
        duramen.open(root, "a")
    shutil.rmtree(root / ".duramen")
    with duramen.open(root, "a", format=name, **options(name)) as second:
        assert second.append(value(1)) == 1
        for durability in ("write", "fsync"):
            with pytest.raises(FencedError):
                log.append(b"x" * 16, durability=durability)
        assert second.append(value(2)) == 2
        log.close()
        with pytest.raises(LockedError):
            duramen.open(root, "a")
    assert content(root) == values(0, 3)
    assert duramen.verify(root).ok


def test_an_error_of_the_lock_is_not_taken_for_a_file_system_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(posix.fcntl, "flock", flock)
    with pytest.raises(StorageError, match="input/output error"):
        duramen.open(tmp_path / "log", "a")


# --- what must go on as before


def test_a_log_by_a_relative_path_in_a_program_that_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with duramen.open("log", "a", format="durable-log", segment_max_bytes=200) as log:
        monkeypatch.chdir("/")
        log.append_batch(values(0, 20))
        log.group("g").fetch(1)
        log.cursor("c").store(1)
    assert content(tmp_path / "log") == values(0, 20)


def test_a_log_that_is_opened_again_and_again(tmp_path: Path) -> None:
    """In one process, by one disk, and with the descriptors closed."""
    disk = PosixDisk()
    counted = []
    for number in range(5):
        with duramen.open(tmp_path / "log", "a", disk=disk) as log:
            assert log.append(value(number)) == number
            with pytest.raises(LockedError):
                duramen.open(tmp_path / "log", "a", disk=disk)
        counted.append(len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0)
    assert counted[1:] == counted[:-1]


def test_an_error_that_is_pickled(tmp_path: Path) -> None:
    import pickle

    error = pickle.loads(pickle.dumps(FencedError("gone", path="log", hint="look")))
    assert isinstance(error, duramen.PoisonedError)
    assert (str(error), error.exit_code) == ("log: gone (look)", 3)


def test_a_forked_child_does_not_keep_the_directory_locked(tmp_path: Path) -> None:
    """It inherits the descriptor of the lock: the lock must end with the writer all the same."""
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"v")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    duramen.open(tmp_path / "log", "a").close()
    os.close(writing)
    os.close(reading)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_writer_that_gave_up_its_privileges_goes_on(tmp_path: Path) -> None:
    """It can no longer look at its path, which says nothing about the directory that it holds."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    log = duramen.open(closed / "log", "a", durability="write")
    for path in (closed / "log").rglob("*"):
        os.chown(path, 12345, 12345)
    os.chown(closed / "log", 12345, 12345)
    os.setegid(12345)
    os.seteuid(12345)
    try:
        with pytest.raises(PermissionError):
            os.stat(closed / "log")
        assert log.append(b"v") == 0
        log.seal()
        assert log.append(b"v", durability="fsync") == 1
        log.close()
    finally:
        os.seteuid(0)
        os.setegid(0)
    assert content(closed / "log") == [b"v", b"v"]


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "osiris"])
def test_a_segment_that_another_program_wrote_to_is_not_sealed(tmp_path: Path, name: str) -> None:
    with duramen.open(tmp_path / "log", "a", format=name) as log:
        log.append(b"in the copy")
        segment = Path(log.segments[-1].path)
        before = segment.read_bytes()
        log.append(b"in the same file")
        segment.write_bytes(before)
        with pytest.raises(duramen.CorruptionError, match="does not hold what was written"):
            log.seal()
    assert not duramen.verify(tmp_path / "log").ok


@pytest.mark.parametrize("scene", ["moved away", "replaced, and kept under another name"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_active_segment_has_another_name(tmp_path: Path, name: str, scene: str) -> None:
    """What was synced lay in a file outside of the log; only the next seal noticed it."""
    log = duramen.open(tmp_path / "log", "a", format=name, **options(name))
    log.append(value(0))
    segment = Path(log.path, log.segments[-1].path)
    shutil.copy(segment, tmp_path / "copy")
    segment.rename(tmp_path / "kept")
    if scene != "moved away":
        (tmp_path / "copy").rename(segment)
    with pytest.raises(FencedError, match="active segment"):
        log.append(value(1))
    log.close()


@pytest.mark.parametrize("durability", ["fsync", "write"])
@pytest.mark.parametrize("scene", ["deleted", "replaced"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_active_segment_is_deleted_or_replaced(tmp_path: Path, name: str, scene: str, durability: str) -> None:
    """At ``write`` it was acknowledged until the next sync."""
    path = tmp_path / "log"
    log = duramen.open(path, "a", format=name, **options(name))
    for _ in range(3):  # the last by the record writer, where there is one
        log.append(value(0), durability=durability)
    active = Path(log.path, log.segments[-1].path)
    copied = shutil.copy(active, tmp_path / "copy")
    active.unlink()
    if scene == "replaced":
        os.replace(copied, active)
    for _ in range(2):
        with pytest.raises(FencedError, match="active segment"):
            log.append(value(1), durability=durability)
    log.close()
    assert active.exists() == (scene == "replaced")

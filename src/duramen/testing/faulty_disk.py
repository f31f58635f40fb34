"""A disk that fails, shortens or delays the n-th call, over any other disk.

Faults are described in a small language, one per line or separated by ``;``::

    [operation][#calls] [path]: effect

    sync#3: EIO                the third sync fails, of any file
    write#2 *.log: ENOSPC      the second write to a file of that name fails, and nothing is written
    write#2: short             ... takes half of the bytes, and reports that
    write#2: short ENOSPC      ... takes half of the bytes, and fails
    write#4+: ENOSPC           from the fourth write on: the disk stays full
    sync#2-5: delay 0.01       the second to the fifth sync take 10 ms longer
    replace: late EIO          the name is replaced, and yet an error is reported
    #17: EINTR                 the seventeenth call of all

Calls are counted from 1 among those that match operation and path. The path is a pattern for the whole path or for
its last parts. A disk that runs full shortens one write and refuses the next: ``write#2: short; write#3+: ENOSPC``.

Errors are those of the real disk, with number and path. ``close``, ``release``, ``wait`` and the checks of a
lock always work.
"""

from __future__ import annotations

import errno
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, Self, TypeVar

from duramen.disk import (
    Buffer,
    Disk,
    DiskRecordWriter,
    File,
    Gate,
    Kind,
    Lock,
    LostPages,
    Mapped,
    Page,
    RecordWriter,
    refusal,
)
from duramen.errors import UsageError
from duramen.kernel import AppendNotes, Columns, RecordShape
from duramen.testing.simulated_disk import SimulatedFile

LOOKING = ("kind", "list", "directories", "specials", "size", "space", "map", "load", "lock_directory")
CHANGING = (
    "make_directory",
    "create",
    "open",
    "replace",
    "rename_new",
    "remove",
    "remove_directory",
    "sync_directory",
    "lock",
    "page",
    "write",
    "sync",
    "truncate",
    "store",
)
OPERATIONS = (*LOOKING, *CHANGING)

T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """One fault: one line of the language.

    >>> Fault("sync", call=3, error=errno.EIO)
    <Fault sync#3: EIO>
    """

    operation: str | None = None
    """Which calls: one of `OPERATIONS`, or all."""
    call: int | None = None
    """Number of the first call that fails; None: every call."""
    count: int | None = 1
    """How many calls from there on; None: all."""
    path: str | None = None
    error: int | None = None
    short: bool = False
    late: bool = False
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if self.operation is not None and self.operation not in OPERATIONS:
            raise UsageError(f"no operation {self.operation!r}", hint=f"there are {', '.join(OPERATIONS)}")
        if self.short and self.operation not in {None, "write"}:
            raise UsageError(f"{self.operation} cannot be short: only a write can")
        if self.call is None and self.count != 1:
            object.__setattr__(self, "call", 1)
        if self.call is not None and (self.call < 1 or (self.count is not None and self.count < 1)):
            raise UsageError("calls are counted from 1")
        if self.error is not None and self.error not in errno.errorcode:
            raise UsageError(f"no error has the number {self.error}")
        if self.late and self.error is None:
            raise UsageError("a late fault needs an error")
        if self.error is None and not self.short and not self.delay_s:
            raise UsageError("a fault without an effect")

    def matches(self, operation: str, paths: Sequence[str]) -> bool:
        if self.operation not in {None, operation}:
            return False
        glob = self.path
        return glob is None or any(fnmatchcase(path, glob) or fnmatchcase(path, f"*/{glob}") for path in paths)

    def strikes(self, call: int) -> bool:
        """Whether it applies to the matching call of this number."""
        if self.call is None:
            return True
        return self.call <= call and (self.count is None or call < self.call + self.count)

    def __str__(self) -> str:
        which = self.operation or ""
        if self.call is not None:
            which += f"#{self.call}"
            if self.count is None:
                which += "+"
            elif self.count > 1:
                which += f"-{self.call + self.count - 1}"
        effects = [
            f"delay {self.delay_s:g}" if self.delay_s else "",
            "short" if self.short else "",
            "late" if self.late else "",
            errno.errorcode[self.error] if self.error is not None else "",
        ]
        place = " ".join(part for part in (which, self.path or "") if part)
        return f"{place}: {' '.join(effect for effect in effects if effect)}"

    def __repr__(self) -> str:
        return f"<Fault {self}>"


_LINE = re.compile(
    r"(?P<operation>[a-z_]+(?=[\s#:]))?"
    r"(?:#(?P<call>\d+)(?:(?P<on>\+)|-(?P<last>\d+))?)?"
    r"(?:(?:^|\s+)(?P<path>[^\s:#]+))?"
    r"\s*:(?P<effects>.*)"
)


def parse_faults(text: str) -> list[Fault]:
    """Parse the language.

    >>> parse_faults("sync#3: EIO; write *.log: short")
    [<Fault sync#3: EIO>, <Fault write *.log: short>]
    """
    lines = (line.strip() for line in re.split(r"[;\n]", text))
    return [_parse_fault(line) for line in lines if line]


def _parse_fault(line: str) -> Fault:
    parsed = _LINE.fullmatch(line)
    if parsed is None:
        raise UsageError(f"not a fault: {line!r}", hint='such as "sync#3: EIO" or "write#2 *.log: short"')
    call = int(parsed["call"]) if parsed["call"] else None
    count: int | None = 1
    if parsed["on"]:
        count = None
    elif parsed["last"] and call is not None:
        count = int(parsed["last"]) - call + 1
    error, short, late, delay_s = None, False, False, 0.0
    words = iter(parsed["effects"].split())
    for word in words:
        if word == "short":
            short = True
        elif word == "late":
            late = True
        elif word == "delay":
            delay_s = _seconds(next(words, ""), line)
        elif word.startswith("E") and isinstance(number := getattr(errno, word, None), int):
            error = number
        else:
            raise UsageError(f"unknown effect {word!r} in {line!r}", hint="short, late, delay SECONDS, or an errno")
    return Fault(parsed["operation"], call, count, parsed["path"], error, short, late, delay_s)


def _seconds(word: str, line: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UsageError(f"delay {word!r} is not a number of seconds in {line!r}") from None


@dataclass(frozen=True)
class _Strike:
    """What happens to one call."""

    error: int | None = None
    late: bool = False
    short: bool = False


class FaultyDisk(Disk):
    """Forwards every call to ``inner``, unless a fault applies to it.

    ``sync_failure`` says what a failed ``File.sync`` does to a simulated file: ``"lost"`` marks its pages as clean
    though they were not written, as Linux does, so that a second sync succeeds without them; ``"kept"`` leaves them
    pending. A file of the real disk keeps them.

    >>> from duramen.testing.simulated_disk import SimulatedDisk
    >>> disk = FaultyDisk(SimulatedDisk(), "write#2: ENOSPC")
    >>> file = disk.create("/a")
    >>> file.write(0, b"one"), disk.calls
    (3, 2)
    >>> file.write(3, b"two")
    Traceback (most recent call last):
    duramen.errors.StorageError: /a: no space left on device (the disk is full: free some space, then try ...)
    """

    __slots__ = ("inner",)  # everything else is shared by the disks that `within` and `rooted` return

    def __init__(
        self,
        inner: Disk,
        faults: str | Iterable[Fault] = (),
        *,
        sync_failure: Literal["lost", "kept"] = "lost",
        keep_history: bool = False,
    ) -> None:
        if sync_failure not in {"lost", "kept"}:
            raise UsageError(f"sync_failure must be 'lost' or 'kept' (got {sync_failure!r})")
        self.inner = inner
        self.faults = tuple(parse_faults(faults) if isinstance(faults, str) else faults)
        self.sync_failure = sync_failure
        self.calls = 0
        """Number of calls, including failed ones."""
        self.fired: list[str] = []
        """Which fault applied to which call: ``"17 sync /log/0.log: sync#3: EIO"``."""
        self.history: list[str] = []
        """Every call, if ``keep_history`` is set."""
        self._keep_history = keep_history
        self._matched = [0] * len(self.faults)
        self._mutex = threading.Lock()

    # --- one directory

    def within(self, root: str) -> Self:
        return self._over(self.inner.within(root))

    def rooted(self, root: str) -> Self:
        return self._over(self.inner.rooted(root))

    def check_root(self) -> None:
        self.inner.check_root()

    def unroot(self) -> None:
        self.inner.unroot()

    def surviving(self, lost: LostPages) -> Self:
        return self._over(self.inner.surviving(lost))

    def _over(self, inner: Disk) -> Self:
        """The same faults and counts over another view of the disk."""
        if inner is self.inner:
            return self
        disk = object.__new__(type(self))
        disk.__dict__ = self.__dict__
        disk.inner = inner
        return disk

    # --- looking

    def kind(self, path: str) -> Kind:
        return self._call("kind", lambda: self.inner.kind(path), path)

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        return self._call("list", lambda: self.inner.list(path, within), path)

    def directories(self, path: str) -> Sequence[str]:
        return self._call("directories", lambda: self.inner.directories(path), path)

    def specials(self, path: str) -> Sequence[tuple[str, str]]:
        return self._call("specials", lambda: self.inner.specials(path), path)

    def size(self, path: str) -> int:
        return self._call("size", lambda: self.inner.size(path), path)

    def links(self, path: str) -> int:
        return self._call("links", lambda: self.inner.links(path), path)

    def stamp(self, path: str, *, renew: bool = False) -> tuple[int, int, int]:
        return self._call("stamp", lambda: self.inner.stamp(path, renew=renew), path)

    def names_stamp(self, path: str) -> tuple[int, ...] | None:
        return self._call("names_stamp", lambda: self.inner.names_stamp(path), path)

    def space(self, path: str) -> tuple[int, int]:
        return self._call("space", lambda: self.inner.space(path), path)

    def map(self, path: str) -> Mapped:
        return self._call("map", lambda: self.inner.map(path), path)

    # --- changing

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        self._call("make_directory", lambda: self.inner.make_directory(path, parents=parents), path)

    def create(self, path: str) -> File:
        return FaultyFile(self, self._call("create", lambda: self.inner.create(path), path))

    def open(self, path: str) -> File:
        return FaultyFile(self, self._call("open", lambda: self.inner.open(path), path))

    def replace(self, source: str, target: str) -> None:
        self._call("replace", lambda: self.inner.replace(source, target), target, source)

    def rename_new(self, source: str, target: str) -> None:
        self._call("rename_new", lambda: self.inner.rename_new(source, target), target, source)

    def remove(self, path: str) -> None:
        self._call("remove", lambda: self.inner.remove(path), path)

    def remove_directory(self, path: str) -> None:
        self._call("remove_directory", lambda: self.inner.remove_directory(path), path)

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", lambda: self.inner.sync_directory(path), path)

    # --- sharing

    def lock(self, path: str, note: bytes) -> Lock:
        return self._call("lock", lambda: self.inner.lock(path, note), path)

    def lock_directory(self, path: str) -> Lock:
        return self._call("lock_directory", lambda: self.inner.lock_directory(path), path)

    def gate(self, path: str) -> Gate:
        return FaultyGate(self, path, self.inner.gate(path))

    def is_locked(self, path: str) -> bool:
        return self.inner.is_locked(path)

    def page(self, path: str, size_bytes: int, *, writable: bool) -> Page:
        page = self._call("page", lambda: self.inner.page(path, size_bytes, writable=writable), path)
        return FaultyPage(self, path, page)

    def record_writer(
        self,
        file: File,
        index: File | None,
        page: Page,
        lock: Lock,
        shape: RecordShape,
        rows: Columns,
        notes: AppendNotes,
        check: Callable[[], None],
    ) -> RecordWriter:
        return DiskRecordWriter(file, index, page, lock, shape, rows, notes, check)

    # --- striking

    def _call(self, operation: str, act: Callable[[], T], *paths: str) -> T:
        """Make a call, or fail before or after it. The error names the first path."""
        strike = self._strike(operation, *paths)
        if strike.error is not None and not strike.late:
            raise refusal(strike.error, paths[0])
        result = act()
        if strike.error is not None:
            raise refusal(strike.error, paths[0])
        return result

    def _strike(self, operation: str, *paths: str) -> _Strike:
        """Count a call, apply the delays of the faults, and return their other effects."""
        with self._mutex:
            self.calls += 1
            if self._keep_history:
                self.history.append(f"{operation} {' '.join(paths)}")
            struck = []
            for index, fault in enumerate(self.faults):
                if fault.matches(operation, paths):
                    self._matched[index] += 1
                    if fault.strikes(self._matched[index]):
                        struck.append(fault)
                        self.fired.append(f"{self.calls} {operation} {paths[0]}: {fault}")
        delay_s = sum(fault.delay_s for fault in struck)
        if delay_s:
            time.sleep(delay_s)
        failing = next((fault for fault in struck if fault.error is not None), None)
        short = any(fault.short for fault in struck)
        return _Strike(failing.error, failing.late, short) if failing is not None else _Strike(short=short)


class FaultyFile(File):
    def __init__(self, disk: FaultyDisk, inner: File) -> None:
        self.path = inner.path
        self._disk = disk
        self._inner = inner

    def write(self, position: int, data: Buffer) -> int:
        strike = self._disk._strike("write", self.path)
        view = memoryview(data).cast("B")
        if strike.error is None:
            return self._inner.write(position, view[: max(1, len(view) // 2)] if strike.short else view)
        if strike.short:
            view = view[: len(view) // 2]
        if strike.short or strike.late:
            self._inner.write(position, view)
        raise refusal(strike.error, self.path)

    def sync(self) -> None:
        strike = self._disk._strike("sync", self.path)
        if strike.error is None or strike.late:
            self._inner.sync()
        elif self._disk.sync_failure == "lost":
            self.forget_unsynced()
        if strike.error is not None:
            raise refusal(strike.error, self.path)

    def forget_unsynced(self) -> None:
        """See `SimulatedFile.forget_unsynced`; nothing happens to a real file."""
        if isinstance(self._inner, SimulatedFile | FaultyFile):
            self._inner.forget_unsynced()

    def truncate(self, size_bytes: int) -> None:
        self._disk._call("truncate", lambda: self._inner.truncate(size_bytes), self.path)

    def begin_sync(self, position: int, size_bytes: int) -> None:
        self._inner.begin_sync(position, size_bytes)

    def reserve(self, size_bytes: int) -> None:
        self._inner.reserve(size_bytes)

    def size(self) -> int:
        return self._disk._call("size", self._inner.size, self.path)

    def is_linked(self) -> bool:
        return self._inner.is_linked()

    def is_in_place(self) -> bool:
        return self._inner.is_in_place()

    def close(self) -> None:
        self._inner.close()


class FaultyGate(Gate):
    def __init__(self, disk: FaultyDisk, path: str, inner: Gate) -> None:
        self._disk = disk
        self._path = path
        self._inner = inner

    def take(self, note: bytes) -> bool:
        try:
            return self._disk._call("lock", lambda: self._inner.take(note), self._path)
        except BaseException:
            self._inner.release()  # a late error: it was taken
            raise

    def release(self) -> None:
        self._inner.release()

    def close(self) -> None:
        self._inner.close()


class FaultyPage(Page):
    def __init__(self, disk: FaultyDisk, path: str, inner: Page) -> None:
        self._disk = disk
        self._path = path
        self._inner = inner

    def load(self) -> bytes:
        return self._disk._call("load", self._inner.load, self._path)

    def store(self, data: bytes) -> None:
        self._disk._call("store", lambda: self._inner.store(data), self._path)

    def wait(self, seen: bytes, timeout_s: float) -> None:
        self._inner.wait(seen, timeout_s)

    def close(self) -> None:
        self._inner.close()

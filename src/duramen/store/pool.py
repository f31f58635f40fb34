"""The open logs of a store, with a bound on their open segments.

A partition is opened on first use and stays open. If more than ``max_open_segments`` segments or logs are open, the
pool closes the least recently used logs, but never one in use. It reopens a log that another process deleted and
recreated. Closing a writer syncs its log and releases its lock, so that another process may write to the partition.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from duramen.arguments import check_int
from duramen.consumers import ConsumableLog, ConsumableWritableLog
from duramen.errors import UsageError
from duramen.log import WritableLog

MAX_OPEN_SEGMENTS = 64


@dataclass
class _PooledLog:
    log: ConsumableLog
    users: int = 0
    is_replaced: bool = False

    @property
    def is_writer(self) -> bool:
        return isinstance(self.log, WritableLog)

    @property
    def segments(self) -> int:
        return self.log.open_segments + self.is_writer


class Pool:
    """Open logs by path, the least recently used first."""

    def __init__(self, max_open_segments: int = MAX_OPEN_SEGMENTS) -> None:
        self.max_open_segments = check_int("max_open_segments", max_open_segments, least=1)
        self._entries: OrderedDict[str, _PooledLog] = OrderedDict()
        self._guard = threading.RLock()
        self._closed = False

    @property
    def open_segments(self) -> int:
        """Number of open segments."""
        with self._guard:
            return sum(entry.segments for entry in self._entries.values())

    @contextmanager
    def reading(self, path: str, make: Callable[[], ConsumableLog]) -> Iterator[ConsumableLog]:
        """The log at ``path`` for reading: an open one, or the result of ``make``."""
        entry = self._take(path, make)
        try:
            yield entry.log
        finally:
            self._give_back(entry)

    @contextmanager
    def writing(self, path: str, make: Callable[[], ConsumableWritableLog]) -> Iterator[ConsumableWritableLog]:
        """The log at ``path`` for append. A poisoned one is closed and reopened, which runs recovery."""
        entry = self._take(path, make, for_append=True)
        try:
            assert isinstance(entry.log, ConsumableWritableLog)
            yield entry.log
        finally:
            self._give_back(entry)

    def _take(self, path: str, make: Callable[[], ConsumableLog], *, for_append: bool = False) -> _PooledLog:
        with self._guard:
            if self._closed:
                raise UsageError("the store is closed", path=path)
            entry = self._entries.get(path)
            if entry is not None and not self._serves(entry, for_append):
                self._drop(path, entry)
                entry = None
            if entry is None:
                entry = self._entries[path] = _PooledLog(make())
            elif not entry.is_writer and not entry.users:
                entry.log.refresh()
            self._entries.move_to_end(path)
            entry.users += 1
            self._shrink()
            return entry

    def _serves(self, entry: _PooledLog, for_append: bool) -> bool:
        log = entry.log
        if isinstance(log, WritableLog) and (log.is_poisoned or log.is_inherited):
            return False
        return not log.is_closed and (entry.is_writer or not (for_append or log.is_replaced()))

    def _give_back(self, entry: _PooledLog) -> None:
        with self._guard:
            entry.users -= 1
            if entry.is_replaced and not entry.users:
                entry.log.close()
            elif not entry.users:
                self._trim(entry)
            self._shrink()

    def _trim(self, entry: _PooledLog) -> None:
        """Apply the log's own bound, which Keratin stores in its manifest, and the store's."""
        most = min(
            int(entry.log.codec.options.get("max_open_segments", self.max_open_segments)), self.max_open_segments
        )
        if entry.segments > most:
            entry.log.close_segments()

    def _shrink(self) -> None:
        for path, entry in list(self._entries.items()):
            if max(self.open_segments, len(self._entries)) <= self.max_open_segments:
                return  # logs without open segments count, too: their groups have open files
            if not entry.users:
                self._drop(path, entry)

    def _drop(self, path: str, entry: _PooledLog) -> None:
        del self._entries[path]
        if entry.users:
            entry.is_replaced = True
        else:
            entry.log.close()

    def forget(self, prefix: str) -> None:
        """Close every log below a directory; `UsageError` if one is in use."""
        with self._guard:
            below = [(path, entry) for path, entry in self._entries.items() if path.startswith(prefix + "/")]
            if any(entry.users for _, entry in below):
                raise UsageError("the topic is in use in this process", path=prefix, hint="close its readers first")
            for path, entry in below:
                self._drop(path, entry)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            first: BaseException | None = None
            for path, entry in list(self._entries.items()):
                try:
                    self._drop(path, entry)
                except Exception as error:  # noqa: BLE001
                    first = first or error
            if first is not None:
                raise first

"""A page that processes share: a few bytes of a file, a counter of its changes, and sleeping until it changes."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time

from duramen.disk import futex
from duramen.disk.os_errors import refused
from duramen.disk.paths import Descriptor, Reach, open_regular, write_whole
from duramen.disk.vfs import Page

_POLL_S = 0.005
_SLEEP_S = 0.5  # the longest sleep at once: how late a waiter may notice that another thread closed its page
_FIRST_SLEEP_S = 0.002
_WHOLE_LOADS = 8


class PosixPage(Page):
    """A counter of stores (four bytes), then the page.

    Both are accessed with pread and pwrite, which the page cache keeps coherent between processes: a store into a
    mapping would end the process with SIGBUS when the disk is full or the file was cut. One write changes both. A
    reader that sees the new counter and the old page, because it came in the middle of that write, could miss the
    wake-up: so its first sleep is short. Only one page at a time is writable: its owner holds the log's lock.
    """

    def __init__(self, path: str, reach: Reach, size_bytes: int, *, writable: bool) -> None:
        self.path = path
        self._size_bytes = size_bytes
        self._mutex = threading.Lock()
        self._closed = False
        try:
            with reach() as place:
                number = open_regular(path, place, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY)
            self._descriptor = Descriptor(number)
            missing = futex.WORD_BYTES + size_bytes - os.fstat(number).st_size
            if missing > 0:
                if not writable:
                    raise OSError(errno.ENODATA, "The page does not exist yet")
                write_whole(number, bytes(missing), os.fstat(number).st_size)
            self._word = futex.open_word(number)
        except OSError as error:
            raise refused(error, path) from error

    def load(self) -> bytes:
        """The page. Two equal reads prove that no store interrupted them; after a few unequal ones, the last."""
        try:
            with self._descriptor as descriptor:
                page = os.pread(descriptor, self._size_bytes, futex.WORD_BYTES)
                for _ in range(_WHOLE_LOADS):
                    before, page = page, os.pread(descriptor, self._size_bytes, futex.WORD_BYTES)
                    if page == before:
                        break
        except OSError as error:
            raise refused(error, self.path) from error
        if len(page) < self._size_bytes:
            raise refused(OSError(errno.ENODATA, "The page was cut"), self.path)
        return page

    def store(self, data: bytes) -> None:
        if len(data) > self._size_bytes:
            raise ValueError(f"a page of {self._size_bytes} bytes cannot hold {len(data)}")
        try:
            with self._mutex, self._descriptor as descriptor:
                counter = (self._counter(descriptor) + 1) % 2**32  # a record writer stores, too
                write_whole(descriptor, counter.to_bytes(futex.WORD_BYTES, sys.byteorder) + data, 0)
        except OSError as error:
            raise refused(error, self.path) from error
        if self._word is not None:
            self._word.wake()

    def wait(self, seen: bytes, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        sleep_s = _FIRST_SLEEP_S
        while not self._closed:
            try:
                with self._descriptor as descriptor:
                    counter = self._counter(descriptor)
                if self.load() != seen:
                    return
            except OSError as error:
                if self._closed:
                    return
                raise refused(error, self.path) from error
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if self._word is None or not self._word.wait(counter, min(left, sleep_s)):
                time.sleep(min(left, _POLL_S))
            sleep_s = _SLEEP_S

    @property
    def handles(self) -> tuple[Descriptor, futex.Word | None]:
        """The open file, and the counter to wake waiters of, for a record writer."""
        return self._descriptor, self._word

    def close(self) -> None:
        self._closed = True
        if self._word is not None:
            self._word.wake()
        try:
            self._descriptor.close()
        except OSError as error:
            raise refused(error, self.path) from error

    @staticmethod
    def _counter(descriptor: int) -> int:
        return int.from_bytes(os.pread(descriptor, futex.WORD_BYTES, 0), sys.byteorder)

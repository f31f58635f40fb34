"""Sleep until a word in a shared file changes, and wake the sleepers: futex(2), which Linux has and Python does not
offer.

This module never reads or writes the word. The mapping only provides its address for the operating system, so that a
truncated file or a full disk causes an error number, never a SIGBUS. Without futex (another system or processor, or a
sandbox that forbids it) `open_word` returns None, and the caller polls.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

WORD_BYTES = 4

_FUTEX_WAIT = 0  # without FUTEX_PRIVATE_FLAG, to wake waiters of other processes too
_FUTEX_WAKE = 1
_ALL_WAITERS = 2**31 - 1
_SYSCALL_NUMBERS = {"x86_64": 202, "aarch64": 98}


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


@functools.cache
def _futex() -> Callable[..., int] | None:
    """The call as a function of (address, operation, value, timeout), or None."""
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if sys.platform != "linux" or number is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    syscall.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
    return functools.partial(syscall, number)


class Word:
    """The first four bytes of an open file, to sleep on. The descriptor may be closed afterwards."""

    def __init__(self, descriptor: int, futex: Callable[..., int]) -> None:
        mapped = mmap.mmap(descriptor, WORD_BYTES, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._array: np.ndarray[Any, Any] = np.frombuffer(mapped, np.uint32)  # keeps the mapping, as long as it lives
        self.address = self._array.ctypes.data
        self._futex = futex

    def wait(self, expected: int, timeout_s: float) -> bool:
        """Sleep while the word is ``expected``, until a wake-up, a signal or the timeout. Returns False if sleeping is
        impossible."""
        seconds = int(timeout_s)
        limit = _Timespec(seconds, int((timeout_s - seconds) * 1e9))
        if self._futex(self.address, _FUTEX_WAIT, expected, ctypes.byref(limit)) == 0:
            return True
        return ctypes.get_errno() in {errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT}

    def wake(self) -> None:
        """Wake all waiters on this word of this file, in every process."""
        self._futex(self.address, _FUTEX_WAKE, _ALL_WAITERS, None)


def open_word(descriptor: int) -> Word | None:
    """The first word of a file of at least four bytes; None if the system has no futex."""
    futex = _futex()
    return None if futex is None else Word(descriptor, futex)

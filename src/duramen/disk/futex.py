"""Sleeping until a word in a shared file changes, and waking those who do: futex(2), which Linux has and Python hides.

Nothing here reads or writes the word: the mapping serves only as its address, and the kernel looks behind it. So a
file that was cut, or a disk that is full, ends in an error number and never in a SIGBUS. Where there is no futex
(another system, another processor, a sandbox that forbids it) `open_word` answers None, and the caller polls.
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

_FUTEX_WAIT = 0  # without FUTEX_PRIVATE_FLAG: waiters of other processes are woken, too
_FUTEX_WAKE = 1
_EVERYBODY = 2**31 - 1
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
    """The first four bytes of an open file, for sleeping. The descriptor may be closed afterwards."""

    def __init__(self, descriptor: int, futex: Callable[..., int]) -> None:
        mapped = mmap.mmap(descriptor, WORD_BYTES, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._array: np.ndarray[Any, Any] = np.frombuffer(mapped, np.uint32)  # keeps the mapping, as long as it lives
        self._address = self._array.ctypes.data
        self._futex = futex

    def wait(self, expected: int, timeout_s: float) -> bool:
        """Sleep while the word is ``expected``, until a wake-up, a signal or the end of the time. False where
        sleeping is not possible."""
        seconds = int(timeout_s)
        limit = _Timespec(seconds, int((timeout_s - seconds) * 1e9))
        if self._futex(self._address, _FUTEX_WAIT, expected, ctypes.byref(limit)) == 0:
            return True
        return ctypes.get_errno() in {errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT}

    def wake(self) -> None:
        """Wake everybody who sleeps on this word of this file, in whatever process."""
        self._futex(self._address, _FUTEX_WAKE, _EVERYBODY, None)


def open_word(descriptor: int) -> Word | None:
    """The first word of a file that has one, or None where there is no futex."""
    futex = _futex()
    return None if futex is None else Word(descriptor, futex)

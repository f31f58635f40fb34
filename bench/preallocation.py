"""What it brings to have a file's space beforehand: a file that grows, one with space reserved behind its end
(fallocate with KEEP_SIZE), one with space allocated within its size (posix_fallocate), and one filled with zeros."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.measure import Samples, take_turns
from bench.report import Table, ms, us

SYNCED_BYTES = (256, 4096, 256_000)
WRITTEN_BYTES = 1_060_000
WRITES_PER_FILE = 16
FALLOC_FL_KEEP_SIZE = 1


def preallocation(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "os.pwrite and os.fdatasync behind what is there (ms)",
        ["write", "file", "median", "best", "p90", "p99", "÷ growing (medians)", "prepared in"],
        _synced(scratch, 30 if quick else 300),
    )
    yield Table(
        f"os.pwrite of {WRITTEN_BYTES:,} B behind what is there, no sync (µs)",
        ["file", "median", "best", "÷ growing (medians)", "prepared in"],
        _written(scratch, 2 if quick else 20),
        "Files are fresh every round; the zero-filled file's pages are in memory, so it shows the copy alone.",
    )


def _synced(scratch: Path, rounds: int) -> Iterator[list[str]]:
    for size in SYNCED_BYTES:
        with ExitStack() as stack:
            writers, prepared = _files(stack, scratch, rounds, os.urandom(size), sync=True)
            samples = take_turns(writers, rounds)
        for name, taken in samples.items():
            times = (taken.median, taken.best, taken.percentile(90), taken.percentile(99))
            ratio = f"{taken.median / samples['grows'].median:.2f}"
            yield [f"{size:,} B", name, *map(ms, times), ratio, f"{ms(prepared[name])} ms"]


def _written(scratch: Path, rounds: int) -> Iterator[list[str]]:
    samples: dict[str, Samples] = {}
    prepared: dict[str, Samples] = {}
    for _ in range(rounds):
        with ExitStack() as stack:
            writers, seconds = _files(stack, scratch, WRITES_PER_FILE, os.urandom(WRITTEN_BYTES), sync=False)
            for name, taken in take_turns(writers, WRITES_PER_FILE).items():
                samples.setdefault(name, Samples()).extend(taken)
                prepared.setdefault(name, Samples()).append(seconds[name])
    for name, taken in samples.items():
        ratio = f"{taken.median / samples['grows'].median:.2f}"
        yield [name, us(taken.median), us(taken.best), ratio, f"{us(prepared[name].median)} µs"]


def _files(
    stack: ExitStack, scratch: Path, writes: int, data: bytes, *, sync: bool
) -> tuple[dict[str, Callable[[], None]], dict[str, float]]:
    """A writer for each kind of file, and how long it took to prepare the file."""
    writers: dict[str, Callable[[], None]] = {}
    prepared: dict[str, float] = {}
    for name, prepare in KINDS.items():
        path = scratch / f"prepared-{name}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        stack.callback(path.unlink)
        stack.callback(os.close, descriptor)
        start = time.perf_counter()
        prepare(descriptor, writes * len(data))
        prepared[name] = time.perf_counter() - start
        if sync:
            os.fsync(descriptor)
        writers[name] = _writer(descriptor, data, sync)
    return writers, prepared


def _writer(descriptor: int, data: bytes, sync: bool) -> Callable[[], None]:
    position = 0

    def write() -> None:
        nonlocal position
        position += os.pwrite(descriptor, data, position)
        if sync:
            os.fdatasync(descriptor)

    return write


def _nothing(descriptor: int, size_bytes: int) -> None:
    return


def _reserve(descriptor: int, size_bytes: int) -> None:
    if LIBC.fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, size_bytes):
        raise OSError(ctypes.get_errno(), "fallocate")


def _allocate(descriptor: int, size_bytes: int) -> None:
    os.posix_fallocate(descriptor, 0, size_bytes)


def _zeros(descriptor: int, size_bytes: int) -> None:
    block = bytes(1 << 20)
    for position in range(0, size_bytes, len(block)):
        os.pwrite(descriptor, block[: size_bytes - position], position)


KINDS: dict[str, Callable[[int, int], None]] = {"grows": _nothing}
if sys.platform == "linux":
    LIBC = ctypes.CDLL(None, use_errno=True)
    LIBC.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    KINDS |= {"reserved": _reserve}
if hasattr(os, "posix_fallocate"):
    KINDS |= {"allocated": _allocate}
KINDS |= {"zero-filled": _zeros}

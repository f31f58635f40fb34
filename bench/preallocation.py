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
from statistics import fmean

from bench.measure import Samples, take_turns
from bench.report import Table, ms, us

SYNCED_BYTES = (256, 4096, 256_000)
WRITTEN_BYTES = 1_060_000
WRITES_PER_FILE = 16
AHEAD_BYTES = 1 << 20
AHEAD_OF_BYTES = (256, 4096, 32_768, 128_000, 256_000, 512_000)
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
    yield Table(
        f"os.pwrite and os.fdatasync, with {AHEAD_BYTES >> 10:,} KiB of zeros ahead whenever they are used up (ms)",
        ["write", "file", "mean", "median", "p99", "÷ growing (means)", "(medians)"],
        _ahead(scratch, 60 if quick else 600),
        "The zeros are written and synced by the commit that finds none: all of their cost is in here.",
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


def _ahead(scratch: Path, rounds: int) -> Iterator[list[str]]:
    for size in AHEAD_OF_BYTES:
        data = os.urandom(size)
        with ExitStack() as stack:
            writers = {}
            for name, ahead_bytes in (("grows", 0), ("zeros ahead", AHEAD_BYTES)):
                path = scratch / name
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                stack.callback(path.unlink)
                stack.callback(os.close, descriptor)
                writers[name] = _writer_ahead(descriptor, data, ahead_bytes)
            samples = take_turns(writers, rounds)
        grows = samples["grows"]
        for name, taken in samples.items():
            mean, growing = fmean(taken), fmean(grows)
            ratios = f"{mean / growing:.2f}", f"{taken.median / grows.median:.2f}"
            yield [f"{size:,} B", name, *map(ms, (mean, taken.median, taken.percentile(99))), *ratios]


def _writer_ahead(descriptor: int, data: bytes, ahead_bytes: int) -> Callable[[], None]:
    position = filled = 0
    zeros = bytes(ahead_bytes)

    def write() -> None:
        nonlocal position, filled
        position += os.pwrite(descriptor, data, position)
        if zeros and position > filled:
            filled = position + os.pwrite(descriptor, zeros, position)
        os.fdatasync(descriptor)

    return write


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

"""Does it make syncs cheaper to have the file's space beforehand: a file that grows, one with space allocated
(posix_fallocate), and one filled with zeros."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.measure import take_turns
from bench.report import Table, ms

SIZES = (256, 4096, 256 * 1000)


def preallocation(scratch: Path, quick: bool) -> Iterator[Table]:
    rounds = 30 if quick else 300
    yield Table(
        "os.pwrite and os.fdatasync behind what is there (ms)",
        ["write", "file", "median", "best", "p90", "p99", "× the growing file (medians)", "made in"],
        _rows(scratch, rounds),
    )


def _rows(scratch: Path, rounds: int) -> Iterator[list[str]]:
    for size in SIZES:
        with ExitStack() as stack:
            made: dict[str, float] = {}
            writers: dict[str, Callable[[], None]] = {}
            for name, prepare in {"grows": _nothing, "allocated": _allocate, "zero-filled": _zeros}.items():
                path = scratch / f"prepared-{name}"
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                stack.callback(path.unlink)
                stack.callback(os.close, descriptor)
                start = time.perf_counter()
                prepare(descriptor, rounds * size)
                os.fsync(descriptor)
                made[name] = time.perf_counter() - start
                writers[name] = _writer(descriptor, os.urandom(size))
            samples = take_turns(writers, rounds)
        for name, taken in samples.items():
            yield [
                f"{size:,} B", name, ms(taken.median), ms(taken.best), ms(taken.percentile(90)),
                ms(taken.percentile(99)), f"{taken.median / samples['grows'].median:.2f}", ms(made[name]),
            ]  # fmt: skip


def _writer(descriptor: int, data: bytes) -> Callable[[], None]:
    position = 0

    def write() -> None:
        nonlocal position
        position += os.pwrite(descriptor, data, position)
        os.fdatasync(descriptor)

    return write


def _nothing(descriptor: int, size_bytes: int) -> None:
    return


def _allocate(descriptor: int, size_bytes: int) -> None:
    os.posix_fallocate(descriptor, 0, size_bytes)


def _zeros(descriptor: int, size_bytes: int) -> None:
    block = bytes(1 << 20)
    for position in range(0, size_bytes, len(block)):
        os.pwrite(descriptor, block[: size_bytes - position], position)

"""Appending at `fsync`: batches against write and fdatasync of the same bytes and against other stores; single
appends of many threads; latencies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from bench import logs, picture
from bench import peers as peer_stores
from bench.appending import batch_bytes, open_log, raw_writer
from bench.floors import CommitCalls, threads_floor
from bench.measure import Crowd, Samples, take_turns
from bench.report import Table, at_least, ms

COUNT = 1000
VALUE_BYTES = 256
RAW_BAR = 0.9
THREADS_BAR = 5.0
LINGERS_MS = (0.0, 0.2, 1.0, 2.0, 5.0)
PICTURE = Path(__file__).parent / "scratch" / "append-latency.svg"


def durable(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "append_batch of 1000 × 256 B at `fsync`, against os.write and os.fdatasync of the same bytes (ms)",
        [
            "format", "raw median", "mean", "best", "duramen median", "mean", "best",
            "× raw, medians", "means", "best", "bar (medians)", "the same calls, median", "× them", "bar",
        ],
        _durable(scratch, 20 if quick else 300),
        "Means leave out the fastest and the slowest tenth. Where zeros are written ahead of the records, every fourth "
        "commit pays for them. The same calls: every system call of a commit in its order, of bytes that lie ready.",
    )  # fmt: skip


def _durable(scratch: Path, rounds: int) -> Iterator[list[str]]:
    values = logs.values(COUNT, VALUE_BYTES)
    by_default: list[tuple[str, int | None]] = [(name, None) for name in logs.FORMATS]
    asked = [(name, 1 << 20) for name in logs.FORMATS if not logs.codec(name, VALUE_BYTES).capabilities.cuts_zeros]
    for name, ahead_bytes in by_default + asked:
        root = scratch / "durable"
        root.mkdir()
        with ExitStack() as stack:
            log = stack.enter_context(open_log(root / "log", name, VALUE_BYTES, "fsync", preallocate_bytes=ahead_bytes))
            append = lambda log=log: log.append_batch(values)  # noqa: E731
            data = batch_bytes(root / "log", append)
            limits = logs.codec(name, VALUE_BYTES).capabilities
            fills = bool(ahead_bytes) or (ahead_bytes is None and limits.cuts_zeros)
            calls = CommitCalls(stack, root / "calls", data, proves=not limits.record_checksum, fills=fills)
            work = {"raw": raw_writer(stack, root / "raw", data, sync=True), "ours": append, "calls": calls}
            samples = take_turns(work, rounds)
        shutil.rmtree(root)
        if ahead_bytes:
            name = f"{name}, preallocate_bytes={ahead_bytes >> 10} KiB"
        cells, ratio = _compared(samples["raw"], samples["ours"])
        yield [
            name,
            *cells,
            at_least(ratio, RAW_BAR, f"{name}: append_batch at `fsync`, 1000 × 256 B ÷ write + fdatasync"),
            ms(samples["calls"].median),
            f"{(floor := samples['calls'].median / samples['ours'].median):.2f}",
            at_least(floor, RAW_BAR, f"{name}: append_batch at `fsync`, 1000 × 256 B ÷ the same calls"),
        ]


def _compared(raw: Samples, ours: Samples) -> tuple[list[str], float]:
    """The times of both and their ratios as cells, and the ratio of the medians."""
    times = [(taken.median, taken.middle, taken.best) for taken in (raw, ours)]
    ratios = [theirs / own for theirs, own in zip(*times, strict=True)]
    return [*(ms(seconds) for taken in times for seconds in taken), *(f"{ratio:.2f}" for ratio in ratios)], ratios[0]


def peers(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "The same durable commit of 1000 × 256 B elsewhere (ms)",
        ["store", "commits", "median", "best", "p99", "duramen is faster by", "durable by"],
        _peers(scratch, 10 if quick else 150),
        "Each takes turns with duramen alone, on fresh files.",
    )


def _peers(scratch: Path, rounds: int) -> Iterator[list[str]]:
    values = logs.values(COUNT, VALUE_BYTES)
    ours = Samples()
    theirs: dict[str, list[str]] = {}
    for name, kind in peer_stores.KINDS.items():
        if find_spec(kind.module) is None:
            theirs[name] = [name, "", "not run", "", "", "", "not installed"]
            continue
        root = scratch / "peers"
        root.mkdir()
        with ExitStack() as stack:
            log = stack.enter_context(open_log(root / "keratin", "keratin", VALUE_BYTES, "fsync"))
            commit = kind.open(stack, root / "peer")
            work = {"ours": lambda log=log: log.append_batch(values), "peer": lambda c=commit: c(values)}
            samples = take_turns(work, max(3, rounds // kind.slowness))
        shutil.rmtree(root)
        ours += samples["ours"]
        faster = samples["peer"].median / samples["ours"].median
        theirs[name] = [name, *_cells(samples["peer"]), f"{faster:.2f} ×", kind.durability]
    yield ["duramen (keratin)", *_cells(ours), "", "fsync: fdatasync of the segment"]
    yield from theirs.values()


def _cells(samples: Samples) -> list[str]:
    return [str(len(samples)), ms(samples.median), ms(samples.best), ms(samples.percentile(99))]


def threads(scratch: Path, quick: bool) -> Iterator[Table]:
    seconds, rounds = (0.5, 1) if quick else (1.5, 6)
    yield Table(
        "Single appends of 256 B at `fsync`: 16 threads against one (appends/s)",
        [
            "format", "raw write + fdatasync", "1 thread", "16 threads", "16 ÷ 1", "bar",
            "16 threads of C", "÷ them", "bar",
        ],
        _threads(scratch, seconds, rounds),
        "The faster the disk, the less there is to share: the ratio is bounded by what one append costs the processor. "
        "The threads of C share what a commit of the format writes and syncs through one mutex and one condition.",
    )  # fmt: skip
    yield Table(
        "Single appends of 256 B at `fsync`, keratin: the effect of linger_ms (appends/s)",
        ["linger_ms", *(f"{count} thread{'s' * (count > 1)}" for count in (1, 4, 16, 64))],
        _lingers(scratch, seconds, max(1, rounds // 2)),
    )


def _threads(scratch: Path, seconds: float, rounds: int) -> Iterator[list[str]]:
    (value,) = logs.values(1, VALUE_BYTES)
    for name in logs.FORMATS:
        root = scratch / "threads"
        root.mkdir()
        with ExitStack() as stack:
            log = stack.enter_context(open_log(root / "log", name, VALUE_BYTES, "fsync"))
            append = lambda log=log: log.append(value)  # noqa: E731
            record = batch_bytes(root / "log", append)
            raw = raw_writer(stack, root / "raw", record, sync=True)
            plan = {"raw": (raw, 1), "one": (append, 1), "many": (append, 16)}
            rates = {work: Samples() for work in plan}
            floor, limits = Samples(), logs.codec(name, VALUE_BYTES).capabilities
            for _ in range(rounds):
                for work, (run, count) in plan.items():
                    rates[work].append(Crowd(run, count, seconds / 2).per_second)
                floor += filter(None, [threads_floor(root, 16, len(record), seconds / 2, limits)])
        shutil.rmtree(root)
        ratio = rates["many"].median / rates["one"].median
        verdict = at_least(ratio, THREADS_BAR, f"{name}: single appends at `fsync`, 16 threads ÷ 1")
        row = [name, *(f"{rate.median:,.0f}" for rate in rates.values()), f"{ratio:.1f}", verdict]
        if not floor:
            yield [*row, "no C compiler", "", ""]
            continue
        reached = rates["many"].median / floor.median
        bar = at_least(reached, RAW_BAR, f"{name}: single appends at `fsync`, 16 threads ÷ 16 threads of C")
        yield [*row, f"{floor.median:,.0f}", f"{reached:.2f}", bar]


def _lingers(scratch: Path, seconds: float, rounds: int) -> Iterator[list[str]]:
    (value,) = logs.values(1, VALUE_BYTES)
    counts = (1, 4, 16, 64)
    rates = {(linger, count): Samples() for linger in LINGERS_MS for count in counts}
    for _ in range(rounds):
        for (linger, count), found in rates.items():
            root = scratch / "lingers"
            with open_log(root, "keratin", VALUE_BYTES, "fsync", linger_ms=linger) as log:
                crowd = Crowd(lambda log=log: log.append(value), count, seconds)
            found.append(crowd.per_second)
            shutil.rmtree(root)
    for linger in LINGERS_MS:
        yield [f"{linger:g}", *(f"{rates[linger, count].median:,.0f}" for count in counts)]


def latency(scratch: Path, quick: bool) -> Iterator[Table]:
    samples = _latency(scratch, *((0.5, 2) if quick else (2.0, 6)))
    yield Table(
        "Latency of single appends of 256 B at `fsync`, keratin (ms)",
        ["", "appends/s", "p50", "p90", "p99", "p99.9"],
        iter(
            [name, f"{rate:,.0f}", *(ms(taken.percentile(percent)) for percent in (50, 90, 99, 99.9))]
            for name, (rate, taken) in samples.items()
        ),
        picture.draw({f"{name}: {rate:,.0f}/s": taken for name, (rate, taken) in samples.items()}, PICTURE),
    )


def _latency(scratch: Path, seconds: float, rounds: int) -> dict[str, tuple[float, Samples]]:
    """Rate and times of one writer that calls os.write and os.fdatasync, and of 1, 4 and 16 threads that append."""
    (value,) = logs.values(1, VALUE_BYTES)
    root = scratch / "latency"
    root.mkdir()
    with ExitStack() as stack:
        log = stack.enter_context(open_log(root / "log", "keratin", VALUE_BYTES, "fsync"))
        append = lambda: log.append(value)  # noqa: E731
        raw = raw_writer(stack, root / "raw", batch_bytes(root / "log", append), sync=True)
        plan = {"raw write + fdatasync, 1 thread": (raw, 1)} | {
            f"duramen, {count} thread{'s' * (count > 1)}": (append, count) for count in (1, 4, 16)
        }
        rates = {name: Samples() for name in plan}
        taken = {name: Samples() for name in plan}
        for _ in range(rounds):
            for name, (run, count) in plan.items():
                crowd = Crowd(run, count, seconds)
                rates[name].append(crowd.per_second)
                taken[name] += crowd.samples
    shutil.rmtree(root)
    return {name: (rates[name].median, taken[name]) for name in plan}

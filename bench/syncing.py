"""Appending at `fsync`: batches against write and fdatasync of the same bytes and against other stores; single
appends of many threads; latencies."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench import logs, picture
from bench.appending import batch_bytes, open_log, raw_writer
from bench.measure import Crowd, Samples, take_turns
from bench.peers import KINDS, open_peers
from bench.report import Table, at_least, ms

COUNT = 1000
VALUE_BYTES = 256
RAW_BAR = 0.9
THREADS_BAR = 5.0
LINGERS_MS = (0.0, 0.2, 1.0, 2.0, 5.0)
RESULTS = Path(__file__).parent / "results"


def durable(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "append_batch of 1000 × 256 B at `fsync`, against os.write and os.fdatasync of the same bytes (ms)",
        ["format", "raw median", "best", "duramen median", "best", "× raw, medians", "× raw, best", "bar (medians)"],
        _durable(scratch, 20 if quick else 200),
        "rustlog has no checksum: its watermark is synced as well, which is a second sync per commit.",
    )


def _durable(scratch: Path, rounds: int) -> Iterator[list[str]]:
    values = logs.values(COUNT, VALUE_BYTES)
    for name in logs.FORMATS:
        root = scratch / "durable"
        root.mkdir()
        with ExitStack() as stack:
            log = stack.enter_context(open_log(root / "log", name, VALUE_BYTES, "fsync"))
            append = lambda log=log: log.append_batch(values)  # noqa: E731
            raw = raw_writer(stack, root / "raw", batch_bytes(root / "log", append), sync=True)
            samples = take_turns({"raw": raw, "ours": append}, rounds)
        shutil.rmtree(root)
        ratio = samples["raw"].median / samples["ours"].median
        best = samples["raw"].best / samples["ours"].best
        times = [ms(seconds) for s in (samples["raw"], samples["ours"]) for seconds in (s.median, s.best)]
        yield [name, *times, f"{ratio:.2f}", f"{best:.2f}", at_least(ratio, RAW_BAR)]


def peers(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "The same durable commit of 1000 × 256 B elsewhere (ms)",
        ["store", "median", "best", "p99", "duramen is faster by", "durable by"],
        _peers(scratch, 10 if quick else 100),
    )


def _peers(scratch: Path, rounds: int) -> Iterator[list[str]]:
    values = logs.values(COUNT, VALUE_BYTES)
    root = scratch / "peers"
    root.mkdir()
    with ExitStack() as stack:
        log = stack.enter_context(open_log(root / "keratin", "keratin", VALUE_BYTES, "fsync"))
        found = open_peers(stack, root)
        contestants: dict[str, Callable[[], object]] = {"duramen (keratin)": lambda: log.append_batch(values)}
        for name, peer in found.items():
            if peer is not None:
                contestants[name] = lambda peer=peer: peer.commit(values)
        samples = take_turns(contestants, rounds)
    shutil.rmtree(root)
    durability = {"duramen (keratin)": "fsync: fdatasync of the segment"}
    ours = samples["duramen (keratin)"]
    for name in ("duramen (keratin)", *KINDS):
        if name not in samples:
            yield [name, "not run", "", "", "", "not installed"]
            continue
        one = samples[name]
        peer = found.get(name)
        yield [
            name, ms(one.median), ms(one.best), ms(one.percentile(99)),
            "" if peer is None else f"{one.median / ours.median:.1f} ×",
            durability.get(name) or (peer.durability if peer is not None else ""),
        ]  # fmt: skip


def threads(scratch: Path, quick: bool) -> Iterator[Table]:
    seconds, rounds = (0.5, 1) if quick else (1.5, 4)
    yield Table(
        "Single appends of 256 B at `fsync`: 16 threads against one (appends/s)",
        ["format", "1 thread", "16 threads", "ratio", "bar"],
        _threads(scratch, seconds, rounds),
    )
    yield Table(
        "Single appends of 256 B at `fsync`, keratin: the effect of linger_ms (appends/s)",
        ["linger_ms", *(f"{count} thread{'s' * (count > 1)}" for count in (1, 4, 16, 64))],
        _lingers(scratch, seconds, max(1, rounds // 2)),
    )


def _threads(scratch: Path, seconds: float, rounds: int) -> Iterator[list[str]]:
    (value,) = logs.values(1, VALUE_BYTES)
    for name in logs.FORMATS:
        root = scratch / "threads"
        rates = {1: Samples(), 16: Samples()}
        with open_log(root, name, VALUE_BYTES, "fsync") as log:
            for _ in range(rounds):
                for count, found in rates.items():
                    found.append(Crowd(lambda log=log: log.append(value), count, seconds).per_second)
        shutil.rmtree(root)
        one, many = rates[1].median, rates[16].median
        yield [name, f"{one:,.0f}", f"{many:,.0f}", f"{many / one:.1f}", at_least(many / one, THREADS_BAR)]


def _lingers(scratch: Path, seconds: float, rounds: int) -> Iterator[list[str]]:
    (value,) = logs.values(1, VALUE_BYTES)
    counts = (1, 4, 16, 64)
    rates = {(linger, count): Samples() for linger in LINGERS_MS for count in counts}
    for _ in range(rounds):
        for linger, count in rates:
            root = scratch / "lingers"
            with open_log(root, "keratin", VALUE_BYTES, "fsync", linger_ms=linger) as log:
                crowd = Crowd(lambda log=log: log.append(value), count, seconds)
            rates[linger, count].append(crowd.per_second)
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
        picture.draw({name: taken for name, (_, taken) in samples.items()}, RESULTS / "append-latency.svg"),
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

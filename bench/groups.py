"""A million records through a consumer group with eight threads, beside two other queues of Python at equal durability:
an acknowledgement that was answered survives a power loss. And what reopening a group costs after its history."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import duramen
from bench import logs
from bench.measure import Samples
from bench.report import Table, at_least, ms
from duramen.formats.stroma.columns import Bumped, Marked, Run, encode_runs
from duramen.log.write.group_commit import GroupCommit, GroupLimits, Request

CONSUMERS = 8
FETCH = 500
VALUE_BYTES = 100
BAR, FLOOR_BAR = 20.0, 0.8
ALONE = "sqlite3, the same with one consumer"
FLOORS = ("floor: its bytes and syncs, one thread", "floor: the same, handed over by eight threads")
Consume = Callable[[], int]
"""Fetches once, acknowledges what came, and answers how many that were; 0 at the end."""


def groups(scratch: Path, quick: bool) -> Iterator[Table]:
    records = 100_000 if quick else 1_000_000
    yield Table(
        f"{records:,} records of {VALUE_BYTES} B through a group: {CONSUMERS} threads, fetch of {FETCH}, "
        "acknowledged at `fsync`",
        ["queue", "records", "seconds", "records/s", "duramen is faster by", "bar", "durable by"],
        _queues(scratch, records, 1 if quick else 3),
        "duramen: the median of its runs, which take turns with the others. Fewer records where a queue is slow. The "
        "two floors write what duramen writes and do nothing else: no state, no lock, no record is read.",
    )
    yield Table(
        "A group after a history of acknowledgements: its files, and the first answer after opening it (ms)",
        ["acknowledged", "how", "snapshot + delta, bytes", "reopened median", "best", "bar"],
        _reopened(scratch, [20_000, 100_000] if quick else [40_000, 1_000_000, 10_000_000]),
    )


def _queues(scratch: Path, records: int, rounds: int) -> Iterator[list[str]]:
    rates: dict[str, Samples] = {}
    counts: dict[str, int] = {}
    for _ in range(rounds):
        for name, (module, fraction, opened, _) in QUEUES.items():
            if find_spec(module) is None:
                continue
            counts[name] = max(records // fraction, FETCH * CONSUMERS)
            root = scratch / "groups"
            root.mkdir()
            with ExitStack() as stack:
                seconds = _crowd(opened(stack, root, counts[name]), counts[name])
            shutil.rmtree(root)
            rates.setdefault(name, Samples()).append(counts[name] / seconds)
    ours = rates["duramen, fetch_batch"].median
    for name, (module, _, _, durability) in QUEUES.items():
        if name not in rates:
            yield [name, "", "", "not run", "", "", f"{module} is not installed"]
            continue
        rate = rates[name].median
        faster = "" if name.startswith("duramen") else f"{ours / rate:,.{2 if name in FLOORS else 1}f} ×"
        is_free = name.startswith("duramen") or name in (ALONE, FLOORS[0])
        wanted = FLOOR_BAR if name in FLOORS else BAR
        bar = "" if is_free else at_least(ours / rate, wanted, f"group, 8 threads ÷ {name}")
        yield [name, f"{counts[name]:,}", f"{counts[name] / rate:.2f}", f"{rate:,.0f}", faster, bar, durability]


def _crowd(make: Callable[[], Consume], records: int) -> float:
    """Eight threads until everything is acknowledged; answers the seconds."""
    start = threading.Barrier(CONSUMERS + 1)
    done = [0] * CONSUMERS

    def work(number: int) -> None:
        consume = make()
        start.wait()
        while count := consume():
            done[number] += count

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CONSUMERS)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if sum(done) != records:
        raise RuntimeError(f"{sum(done)} of {records} records were acknowledged")
    return seconds


# --- the queues: each is filled, and answers how one consumer works


def _duramen_log(stack: ExitStack, root: Path, records: int) -> duramen.WritableLog:
    log = stack.enter_context(duramen.open(root / "log", "a"))
    values = logs.values(10_000, VALUE_BYTES)
    for first in range(0, records, len(values)):
        log.append_batch(values[: records - first], durability="write")
    log.sync()
    next(log.batches(max_records=1))  # what the first read imports is not the group's
    return log


def _duramen_batches(stack: ExitStack, root: Path, records: int) -> Callable[[], Consume]:
    group = _duramen_log(stack, root, records).group("bench")  # type: ignore[attr-defined]

    def consume() -> int:
        batch = group.fetch_batch(FETCH, lease=60)
        return group.ack_many(batch) if len(batch) else 0

    return lambda: consume


def _duramen_records(stack: ExitStack, root: Path, records: int) -> Callable[[], Consume]:
    group = _duramen_log(stack, root, records).group("bench")  # type: ignore[attr-defined]

    def consume() -> int:
        deliveries = group.fetch(FETCH, lease=60)
        return group.ack_many(deliveries) if deliveries else 0

    return lambda: consume


class _Bytes:
    """What eight consumers in step write: the marks of their deliveries, then one ack for all, which is synced."""

    def __init__(self, stack: ExitStack, root: Path, records: int) -> None:
        self._file = os.open(root / "delta", os.O_WRONLY | os.O_CREAT)
        stack.callback(os.close, self._file)
        self._records = records
        self._end = self._marked = 0
        self.acked = 0

    def mark(self, batches: int) -> int:
        """The deliveries of so many batches; answers how many of them there still were."""
        count = min(batches * FETCH, self._records - self._marked)
        self._write([Marked(self._marked, self._marked + count, 1_700_000_000_000, 1)])
        self._marked += count
        return -(-count // FETCH)

    def ack(self, batches: int) -> int:
        count = min(batches * FETCH, self._marked - self.acked)
        self.acked += count
        self._write([Bumped(self.acked)])
        os.fdatasync(self._file)
        return count

    def _write(self, runs: list[Run]) -> None:
        self._end += os.pwrite(self._file, encode_runs(runs), self._end)


def _floor(stack: ExitStack, root: Path, records: int) -> Callable[[], Consume]:
    """One thread, eight batches a sync: what the disk and the kernel take."""
    state = _Bytes(stack, root, records)
    first = threading.Lock()
    return lambda: (lambda: state.ack(state.mark(CONSUMERS))) if first.acquire(blocking=False) else lambda: 0


def _floor_threads(stack: ExitStack, root: Path, records: int) -> Callable[[], Consume]:
    """The same by eight threads, each of which waits twice per batch: what the threads of Python take on top."""
    state = _Bytes(stack, root, records)

    def mark(requests: list[Request]) -> None:
        there = state.mark(len(requests))
        for place, request in enumerate(requests):
            request.result = place < there

    def ack(requests: list[Request]) -> None:
        left = state.ack(len(requests))
        for request in requests:
            request.result = min(left, FETCH)
            left -= request.result

    marks, acks = GroupCommit(mark, GroupLimits()), GroupCommit(ack, GroupLimits())

    def consume() -> int:
        return acks.submit(Request(None, 0, 0)) if marks.submit(Request(None, 0, 0)) else 0

    return lambda: consume


def _sqlite(stack: ExitStack, root: Path, records: int, most: int = FETCH) -> Callable[[], Consume]:
    """A table as people build it: a lease and a count of attempts per row; fetched in one transaction, deleted in
    another. As with duramen, only the second has to survive a power loss."""
    path = root / "queue.db"
    filled = sqlite3.connect(path, isolation_level=None)
    stack.callback(filled.close)
    filled.execute("pragma journal_mode=wal")
    filled.execute(
        "create table queue (id integer primary key, value blob not null, lease real not null, attempts int not null)"
    )
    values = logs.values(10_000, VALUE_BYTES)
    for first in range(0, records, len(values)):
        filled.execute("begin")
        rows = ((value,) for value in values[: records - first])
        filled.executemany("insert into queue (value, lease, attempts) values (?, 0, 0)", rows)
        filled.execute("commit")
    filled.execute("pragma wal_checkpoint(truncate)")

    def make() -> Consume:
        connection = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
        stack.callback(connection.close)

        def consume() -> int:
            now = time.time()
            connection.execute("pragma synchronous=normal")
            connection.execute("begin immediate")
            taken = connection.execute(
                "update queue set lease = ?, attempts = attempts + 1 where id in "
                "(select id from queue where lease <= ? order by id limit ?) returning id, value",
                (now + 60, now, most),
            ).fetchall()
            connection.execute("commit")
            if not taken:
                return 0
            connection.execute("pragma synchronous=full")
            connection.execute("begin immediate")
            connection.executemany("delete from queue where id = ?", ((row[0],) for row in taken))
            connection.execute("commit")
            return len(taken)

        return consume

    return make


def _sqlite_singles(stack: ExitStack, root: Path, records: int) -> Callable[[], Consume]:
    """The same table, one record per transaction, as queue libraries over SQLite do it."""
    make_batches = _sqlite(stack, root, records, most=1)

    def make() -> Consume:
        one = make_batches()

        def consume() -> int:
            return sum(one() for _ in range(FETCH))

        return consume

    return make


def _sqlite_alone(stack: ExitStack, root: Path, records: int) -> Callable[[], Consume]:
    """The same table with one consumer, which is what SQLite likes best: nobody waits for its lock. The other threads
    have nothing to do."""
    make_batches = _sqlite(stack, root, records)
    first = threading.Lock()

    def make() -> Consume:
        return make_batches() if first.acquire(blocking=False) else lambda: 0

    return make


def _persist_queue(stack: ExitStack, root: Path, records: int) -> Callable[[], Consume]:
    """Its queue with acknowledgements gives and takes one record at a time."""
    import persistqueue

    queue = persistqueue.SQLiteAckQueue(str(root / "queue"), multithreading=True)
    stack.callback(queue.close)
    for value in logs.values(records, VALUE_BYTES):
        queue.put(value)
    claimed = threading.Lock()
    left = [records]

    def consume() -> int:
        with claimed:  # get() of an empty queue waits, and its own size is not exact among threads
            count = min(left[0], FETCH)
            left[0] -= count
        items = [queue.get(raw=True) for _ in range(count)]
        for item in items:
            queue.ack(id=item["pqid"])
        return count

    return lambda: consume


QUEUES: dict[str, tuple[str, int, Callable[[ExitStack, Path, int], Callable[[], Consume]], str]] = {
    "duramen, fetch_batch": ("duramen", 1, _duramen_batches, "fdatasync of the delta"),
    "duramen, fetch": ("duramen", 1, _duramen_records, "the same; one object per record"),
    FLOORS[0]: ("duramen", 1, _floor, "the same bytes, 8 batches a sync"),
    FLOORS[1]: ("duramen", 1, _floor_threads, "the same"),
    "sqlite3, one record per transaction": ("sqlite3", 100, _sqlite_singles, "WAL, synchronous=FULL for the deletes"),
    "sqlite3, 500 records per transaction": ("sqlite3", 5, _sqlite, "the same, tuned by hand"),
    ALONE: ("sqlite3", 5, _sqlite_alone, "the same; not what the bar is about"),
    "persist-queue": ("persistqueue", 200, _persist_queue, "SQLiteAckQueue: WAL, a commit per get and per ack"),
}


# --- reopening


def _reopened(scratch: Path, counts: list[int]) -> Iterator[list[str]]:
    for count in counts:
        for how, most in (("500 at a time", 500), ("one at a time", 1)):
            if most == 1 and count > 50_000:  # its delta is as long as it gets by then
                continue
            root = scratch / "reopened"
            root.mkdir()
            with ExitStack() as stack:
                group = _duramen_log(stack, root, count).group("bench", durability="write")  # type: ignore[attr-defined]
                for _ in range(0, count, most * 10):
                    for batch in [group.fetch_batch(most, lease=60) for _ in range(10)]:
                        group.ack_many(batch)
            files = list((root / "log" / "groups").iterdir())
            size = sum(path.stat().st_size for path in files)
            taken = Samples()
            for _ in range(7):
                with duramen.open(root / "log") as log:
                    began = time.perf_counter()
                    if log.group("bench").acked_until != count:
                        raise RuntimeError("not everything is acknowledged")
                    taken.append(time.perf_counter() - began)
            shutil.rmtree(root)
            verdict = f"≤ 100 ms {'met' if taken.median <= 0.1 else 'MISSED'}"
            yield [f"{count:,}", how, f"{size:,}", ms(taken.median), ms(taken.best), verdict]

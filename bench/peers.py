"""Other embedded stores, each committing a batch of values as durably as it can."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

Values = Sequence[bytes]


class Kind(NamedTuple):
    """A store: how to open it on a path that is not there yet, which answers how to commit one batch."""

    module: str
    durability: str
    """What it promises when a commit returns."""
    open: Callable[[ExitStack, Path], Callable[[Values], None]]
    slowness: int = 1
    """How many times fewer commits are measured."""


def _lmdb(stack: ExitStack, root: Path, *, sync: bool = True) -> Callable[[Values], None]:
    import lmdb

    environment = stack.enter_context(lmdb.open(str(root), map_size=4 << 30, sync=sync))
    numbers = count()

    def commit(values: Values) -> None:
        with environment.begin(write=True) as transaction:
            for value in values:
                transaction.put(next(numbers).to_bytes(8, "big"), value, append=True)

    return commit


def _sqlite(stack: ExitStack, root: Path, *, synchronous: str = "full") -> Callable[[Values], None]:
    root.mkdir()
    connection = sqlite3.connect(root / "log.db", isolation_level=None)
    stack.callback(connection.close)
    connection.execute("pragma journal_mode=wal")
    connection.execute(f"pragma synchronous={synchronous}")
    connection.execute("create table log (id integer primary key, value blob not null)")

    def commit(values: Values) -> None:
        connection.execute("begin")
        connection.executemany("insert into log (value) values (?)", ((value,) for value in values))
        connection.execute("commit")

    return commit


def _rocksdict(stack: ExitStack, root: Path) -> Callable[[Values], None]:
    import rocksdict

    database = rocksdict.Rdict(str(root), rocksdict.Options(raw_mode=True))
    stack.callback(database.close)
    synced = rocksdict.WriteOptions()
    synced.sync = True
    numbers = count()

    def commit(values: Values) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for value in values:
            batch.put(next(numbers).to_bytes(8, "big"), value)
        database.write(batch, synced)

    return commit


def _persist_queue(stack: ExitStack, root: Path) -> Callable[[Values], None]:
    import persistqueue

    root.mkdir()
    queue = persistqueue.Queue(str(root / "queue"), chunksize=1000, tempdir=str(root))

    def commit(values: Values) -> None:
        for value in values:
            queue.put(value)

    return commit


KINDS = {
    "lmdb": Kind("lmdb", "sync and metasync (defaults): fdatasync, then a synced meta page", _lmdb),
    "sqlite3": Kind("sqlite3", "WAL, synchronous=FULL: fsync of the WAL", _sqlite),
    "rocksdict": Kind("rocksdict", "WriteOptions.sync: fdatasync of the WAL", _rocksdict),
    "persist-queue": Kind(
        "persistqueue", "file queue, chunksize=1000: fsync per 1000 values, its index never", _persist_queue, 40
    ),
}

RELAXED = {
    "lmdb": Kind("lmdb", "sync off", partial(_lmdb, sync=False)),
    "sqlite3": Kind("sqlite3", "WAL, synchronous=OFF", partial(_sqlite, synchronous="off")),
}
"""The same without a sync."""

"""Where an export goes: a directory of Parquet files, a Delta table, an Iceberg table. Each commits a run as one.

Every target keeps ``_duramen/`` in its directory, which Spark and other readers of Parquet pass over::

    _duramen/lock          held by the export that is running
    _duramen/run.json      the run that is being made: its name, and up to which offsets it goes
    _duramen/sources.json  which log each path was when it was exported last
    _duramen/commits/      (Parquet) one file per committed run: its files, and offset ranges by log
    _duramen/staged/RUN/   (Parquet) the files of a run before it is committed

A run is committed by one atomic step, which also says up to which offset each log is exported: a file that gets its
name (Parquet), a version of the table (Delta), a snapshot of it (Iceberg). A run that died before that step left files
that no reader looks at, and the next run removes them. Refuses a target that another export is writing to.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import posixpath
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pyarrow as pa

from duramen.disk import Disk, Kind, Lock, PosixDisk
from duramen.errors import CorruptionError, DuramenError, LockedError, StorageError, UsageError
from duramen.log import remove_tree
from duramen.sidecar import read_state_file, replace_file
from duramen.spark.jobs.parquet import ParquetWritten

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

OWN = "_duramen"
T = TypeVar("T")


class ExportTarget(ABC):
    """One place to export to, locked while it is used."""

    kind: ClassVar[str]
    needs: ClassVar[str | None] = None

    def __init__(self, path: str) -> None:
        if self.needs is not None and importlib.util.find_spec(self.needs) is None:
            raise DuramenError(f"{self.needs} is not installed", hint="`pip install 'duramen[lake]'` brings it")
        self.path = posixpath.abspath(path)
        self._disk = PosixDisk()
        self._lock: Lock | None = None
        self.run = ""

    # --- what is exported

    @abstractmethod
    def exported(self) -> dict[str, int]:
        """By log: the offset after the last exported one."""

    @abstractmethod
    def _commit(self, files: Sequence[ParquetWritten], begin: Mapping[str, int], end: Mapping[str, int]) -> None: ...

    @abstractmethod
    def staging(self) -> str:
        """Where the tasks of this run write their files."""

    @abstractmethod
    def _discard(self, run: str) -> None:
        """Remove what a run left that was not committed."""

    # --- one run

    def open(self) -> None:
        """Lock the target and clear away what a killed run left."""
        self._disk.make_directory(self._own())
        try:
            self._lock = self._disk.lock(self._own("lock"), f"pid {os.getpid()}\n".encode())
        except LockedError as error:
            raise LockedError("another export is writing here", path=self.path, note=error.note) from None
        left = self._left_run()
        if left is not None:
            name, end = left
            done = self.exported()
            if not all(done.get(log, -1) >= offset for log, offset in end.items()):
                self._discard(name)
            self._disk.remove(self._own("run.json"))

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def sources(self) -> dict[str, str]:
        """By log: its identity when it was exported last. Exports of earlier versions have none."""
        return self._read("sources.json", lambda tree: {str(log): str(text) for log, text in tree.items()}) or {}

    def begin(
        self, schema: pa.Schema, partition_by: str | None, end: Mapping[str, int], sources: Mapping[str, str]
    ) -> str:
        """Begin a run that reads these logs; returns the directory that tasks write to."""
        self.schema, self.partition_by = schema, partition_by
        known = json.dumps({**self.sources(), **sources}, indent=1, sort_keys=True)
        replace_file(self._disk, self._own("sources.json"), known.encode())
        self.run = uuid.uuid4().hex[:16]
        note = json.dumps({"run": self.run, "end": dict(end)}).encode()
        replace_file(self._disk, self._own("run.json"), note)
        directory = self.staging()
        self._disk.make_directory(directory)
        return directory

    def commit(self, files: Sequence[ParquetWritten], begin: Mapping[str, int], end: Mapping[str, int]) -> None:
        """Make the run visible, all of it at once; what losing attempts left is removed."""
        kept = {file.path for file in files}
        for path in _files_below(self._disk, self.staging()):
            if path not in kept:
                self._disk.remove(path)
        self._commit(files, begin, end)
        self._disk.remove(self._own("run.json"))

    def abort(self) -> None:
        """Leave no trace of a run that failed."""
        self._discard(self.run)
        self._disk.remove(self._own("run.json"))

    def _left_run(self) -> tuple[str, dict[str, int]] | None:
        return self._read(
            "run.json",
            lambda tree: (str(tree["run"]), {str(log): int(offset) for log, offset in tree["end"].items()}),
        )

    def _own(self, *names: str) -> str:
        return posixpath.join(self.path, OWN, *names)

    def _read(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """What ``parse`` makes of one of the target's own files; None if it is missing."""
        raw = read_state_file(self._disk, self._own(name))
        try:
            return None if raw is None else parse(json.loads(raw))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(f"cannot be read: {error!r}", path=self._own(name)) from error

    def _remove_tree(self, path: str) -> None:
        with contextlib.suppress(StorageError):  # the next run tries again
            remove_tree(self._disk, path)


class ParquetTarget(ExportTarget):
    """A directory of Parquet files, in folders ``date=…/hour=…`` where it is partitioned.

    The commit is a file in ``_duramen/commits``. Behind it the staged files are renamed into place, one by one: a
    program that lists the directory in that moment sees a part of them, each of them whole. `committed_files` has no
    such moment. A run that died while renaming is finished by the next one."""

    kind = "parquet"

    def open(self) -> None:
        super().open()
        for commit in self._commits():
            if self._disk.kind(self._own("staged", commit["run"])) == Kind.DIRECTORY:
                self._put_into_place(commit)
        self._remove_tree(self._own("staged"))

    def exported(self) -> dict[str, int]:
        done: dict[str, int] = {}
        for commit in self._commits():
            for log, (_, end) in commit["logs"].items():
                done[log] = max(done.get(log, 0), end)
        return done

    def staging(self) -> str:
        return self._own("staged", self.run)

    def _discard(self, run: str) -> None:
        self._remove_tree(self._own("staged", run))

    def _commit(self, files: Sequence[ParquetWritten], begin: Mapping[str, int], end: Mapping[str, int]) -> None:
        self._disk.make_directory(self._own("commits"))
        numbers = [int(name[:8]) for name, _ in self._disk.list(self._own("commits")) if name.endswith(".json")]
        number = max(numbers, default=-1) + 1
        listed = [
            {
                "path": self._final(file), "rows": file.rows, "bytes": file.size_bytes,
                "offsets": [file.first_offset, file.last_offset],
            }
            for file in files
        ]  # fmt: skip
        commit = {
            "run": self.run,
            "committed_ms": int(time.time() * 1000),
            "logs": {log: [begin[log], end[log]] for log in end},
            "files": listed,
        }
        replace_file(self._disk, self._own("commits", f"{number:08d}.json"), json.dumps(commit, indent=1).encode())
        self._put_into_place(commit)

    def _final(self, file: ParquetWritten) -> str:
        """A file's name in the target, which no other run gives."""
        inside = posixpath.relpath(file.path, self.staging())
        folder, name = posixpath.split(inside)
        return posixpath.join(folder, name.replace("part-", f"part-{self.run}-", 1))

    def _put_into_place(self, commit: dict[str, Any]) -> None:
        staged, folders = self._own("staged", commit["run"]), set()
        for file in commit["files"]:
            folder, name = posixpath.split(file["path"])
            source = posixpath.join(staged, folder, name.replace(f"part-{commit['run']}-", "part-", 1))
            target = posixpath.join(self.path, file["path"])
            if self._disk.kind(source) == Kind.FILE:
                self._disk.make_directory(posixpath.dirname(target))
                self._disk.replace(source, target)
                folders.add(posixpath.dirname(target))
        for folder in sorted(folders | {self.path}):
            self._disk.sync_directory(folder)
        self._remove_tree(staged)

    def _commits(self) -> list[dict[str, Any]]:
        return read_commits(self.path)


def read_commits(path: str) -> list[dict[str, Any]]:
    """The commits of a Parquet export, oldest first."""
    disk, folder = PosixDisk(), posixpath.join(path, OWN, "commits")
    commits = []
    for name, _ in disk.list(folder) if disk.kind(folder) == Kind.DIRECTORY else ():
        if not name.endswith(".json"):
            continue
        full = posixpath.join(folder, name)
        try:
            commits.append(json.loads(bytes(disk.map(full).data)))
        except ValueError as error:
            raise CorruptionError(f"cannot be read: {error}", path=full) from error
    return commits


def _files_below(disk: Disk, directory: str) -> Iterator[str]:
    for name in disk.directories(directory):
        yield from _files_below(disk, posixpath.join(directory, name))
    for name, _ in disk.list(directory):
        yield posixpath.join(directory, name)


def committed_files(path: str) -> list[str]:
    """The files of a Parquet export as its commits list them: whole runs, never a part of one."""
    return [posixpath.join(path, file["path"]) for commit in read_commits(path) for file in commit["files"]]


class DeltaTarget(ExportTarget):
    """A Delta table, by `deltalake`. The version that adds a run's files also carries, as Delta's own transaction
    identifiers, up to which offset each log is exported."""

    kind = "delta"
    needs = "deltalake"

    def exported(self) -> dict[str, int]:
        table = self._table()
        if table is None:
            return {}
        known = self._known_logs()
        versions = {log: table.transaction_version(_app(log)) for log in known}
        return {log: version for log, version in versions.items() if version is not None}

    def begin(
        self, schema: pa.Schema, partition_by: str | None, end: Mapping[str, int], sources: Mapping[str, str]
    ) -> str:
        self._remember(end)
        return super().begin(schema, partition_by, end, sources)

    def staging(self) -> str:
        return posixpath.join(self.path, "data", self.run)

    def _discard(self, run: str) -> None:
        self._remove_tree(posixpath.join(self.path, "data", run))

    def _commit(self, files: Sequence[ParquetWritten], begin: Mapping[str, int], end: Mapping[str, int]) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.transaction import AddAction

        schema = self.schema
        columns = {None: (), "date": ("date",), "hour": ("date", "hour")}[self.partition_by]
        for name in columns:
            schema = schema.append(pa.field(name, pa.date32() if name == "date" else pa.int32()))
        table = self._table() or DeltaTable.create(self.path, schema, partition_by=list(columns))
        now_ms = int(time.time() * 1000)
        adds = [
            AddAction(
                posixpath.relpath(file.path, self.path), file.size_bytes, dict(file.values), now_ms, True,
                json.dumps({"numRecords": file.rows, "minValues": {"offset": file.first_offset},
                            "maxValues": {"offset": file.last_offset}, "nullCount": {"offset": 0}}),
            )
            for file in files
        ]  # fmt: skip
        transactions = [Transaction(_app(log), offset) for log, offset in end.items()]
        table.create_write_transaction(
            list(adds), "append", schema, list(columns) or None,
            commit_properties=CommitProperties(app_transactions=transactions, custom_metadata={"duramen": self.run}),
        )  # fmt: skip

    def _table(self) -> DeltaTable | None:
        from deltalake import DeltaTable

        return DeltaTable(self.path) if DeltaTable.is_deltatable(self.path) else None

    def _known_logs(self) -> list[str]:
        return self._read("logs.json", lambda logs: [str(log) for log in logs]) or []

    def _remember(self, end: Mapping[str, int]) -> None:
        """Store the names of the logs: Delta returns the version of a log only by its name."""
        names = sorted({*self._known_logs(), *end})
        replace_file(self._disk, self._own("logs.json"), json.dumps(names).encode())


def _app(log: str) -> str:
    return f"duramen/{log}"


class IcebergTarget(ExportTarget):
    """An Iceberg table, by `pyiceberg`: in a catalog of SQLite in the target's directory, or in one that is given.

    The snapshot that adds a run's files and the table's properties that say up to which offset each log is exported
    are one transaction. Partitioned by the day or hour of the column ``timestamp`` (hidden partitioning)."""

    kind = "iceberg"
    needs = "pyiceberg"

    def __init__(self, path: str, table: str = "duramen.log", catalog: Mapping[str, str] | None = None) -> None:
        super().__init__(path)
        self._name = table
        self._catalog_options = catalog
        self._loaded: Catalog | None = None

    def exported(self) -> dict[str, int]:
        table = self._table()
        if table is None:
            return {}
        prefix = "duramen.exported."
        return {
            name.removeprefix(prefix): int(text)
            for name, text in table.properties.items()
            if name.startswith(prefix)
        }  # fmt: skip

    def staging(self) -> str:
        return posixpath.join(self.path, "data", self.run)

    def _discard(self, run: str) -> None:
        self._remove_tree(posixpath.join(self.path, "data", run))

    def _commit(self, files: Sequence[ParquetWritten], begin: Mapping[str, int], end: Mapping[str, int]) -> None:
        table = self._table() or self._create()
        with table.transaction() as transaction:
            transaction.set_properties({f"duramen.exported.{log}": str(offset) for log, offset in end.items()})
            if files:
                paths = [f"file://{file.path}" for file in files]
                transaction.add_files(paths, snapshot_properties={"duramen.run": self.run}, check_duplicate_files=False)

    @property
    def _catalog(self) -> Catalog:
        if self._loaded is None:
            from pyiceberg.catalog import load_catalog

            options = self._catalog_options or {
                "type": "sql", "uri": f"sqlite:///{self.path}/catalog.db", "warehouse": f"file://{self.path}",
            }  # fmt: skip
            self._loaded = load_catalog("duramen", **options)
        return self._loaded

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None
        super().close()

    def _table(self) -> Table | None:
        return self._catalog.load_table(self._name) if self._catalog.table_exists(self._name) else None

    def _create(self) -> Table:
        namespace = self._name.rpartition(".")[0]
        if not namespace:
            raise UsageError(f"the table {self._name!r} names no namespace", hint="for example duramen.log")
        self._catalog.create_namespace_if_not_exists(namespace)
        with self._catalog.create_table_transaction(self._name, schema=self.schema) as creation:
            if self.partition_by is not None:
                from pyiceberg.transforms import DayTransform, HourTransform

                transform: Any = DayTransform() if self.partition_by == "date" else HourTransform()
                with creation.update_spec() as spec:
                    spec.add_field("timestamp", transform, self.partition_by)
        return self._catalog.load_table(self._name)


def target(kind: str, path: str, **options: Any) -> ExportTarget:
    """The target of that kind: ``parquet``, ``delta`` or ``iceberg``."""
    kinds = {cls.kind: cls for cls in (ParquetTarget, DeltaTarget, IcebergTarget)}
    if kind not in kinds:
        raise UsageError(f"cannot export to {kind!r}", hint=f"to {', '.join(kinds)}")
    if options and kind != "iceberg":
        raise UsageError(f"{kind} takes no {', '.join(sorted(options))}")
    return kinds[kind](path, **options)

"""The inventory of ``.duramen/`` lists every file that the code writes there, and nothing else."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import duramen
from duramen.log import Compaction, Retention, TransactionPart, commit_batch, convert, repair_log, undo_repair
from duramen.sidecar import BatchKey, StoredSchema, write_schema
from duramen.sidecar.holds import put_hold
from duramen.sidecar.layout import FILES, STAGING_NAME, is_inventoried
from duramen.store import Store
from duramen.testing import SimulatedDisk

ROOT = "/log"


def drive() -> SimulatedDisk:
    """A disk on which every verb was used."""
    disk = SimulatedDisk(keep_history=True)
    seconds = itertools.count(10**18, 10**9)  # the writer publishes its counters once a second
    with duramen.open(ROOT, "a", disk=disk, format="durable-log", clock=lambda: next(seconds)) as log:
        for batch in range(4):
            log.append_batch([b"key=%d" % row for row in range(20)])
            log.seal()
            log.append_once([[b"once=1"]], writer="query", batch=batch)
        log.compact(Compaction(key="delimiter:="))
        log.retain(Retention(before_offset=40))
        log.producer("sender").append(b"first=1", sequence=1)
        log.cursor("reader").store(1)
        log.group("workers").fetch(1)
        put_hold(disk, ROOT, "job", 30, 2**62)
        log.verify(publish=True)
    with duramen.open("/chunks", "a", disk=disk, format="osiris") as log:
        log.append_batch([b"one", b"two"])
    convert("/chunks", "/converted", "keratin", disk=disk)
    _repair(disk)
    commit_batch(
        "/logs", BatchKey("query", 0, "a"), [TransactionPart("a", _rows), TransactionPart("b", _rows)], disk=disk
    )
    replacing = TransactionPart("", _rows, replaces=True)
    commit_batch("/logs/a", BatchKey("other", 0, "b"), [replacing], disk=disk)
    with Store("/store", disk=disk) as store:
        store.create("events", partitions=2)
    write_schema(disk, "/converted", "http://registry", 7, StoredSchema("json", "{}"))
    return disk


def _rows() -> Iterator[list[bytes]]:
    yield [b"row"]


def _repair(disk: SimulatedDisk) -> None:
    with duramen.open("/broken", "a", disk=disk, format="durable-log") as log:
        log.append_batch([b"x" * 50] * 20)
        path = log.segments[-1].path
    file = disk.open(path)
    file.write(300, b"damage")
    file.close()
    assert repair_log("/broken", plan_only=False, disk=disk).steps
    undo_repair("/broken", disk=disk)


def written(disk: SimulatedDisk) -> set[str]:
    """The entries of all sidecars that were ever created, temporary ones included."""
    paths = {word for line in disk.history for word in re.split(r"[\s]+", line) if "/.duramen/" in word}
    paths |= {path for path in disk.tree() if "/.duramen/" in path}
    return {path.rsplit("/.duramen/", 1)[1].split("/")[0] for path in paths} - {""}


def test_every_file_that_is_written_is_listed_and_every_listed_file_is_written() -> None:
    found = written(drive())
    assert {name for name in found if not is_inventoried(name)} == set()
    never = {entry.name for entry in FILES} - found
    assert never == {STAGING_NAME}, "which Spark's tasks write; the others are written by the verbs above"


def test_names_are_unique_and_plain() -> None:
    names = [entry.name for entry in FILES]
    assert len(set(names)) == len(names)
    assert all(name == posixpath.basename(name) for name in names)


def test_no_other_module_spells_a_name_of_the_sidecar() -> None:
    source = Path(duramen.__file__).parent
    spelled = [
        f"{path.relative_to(source)}: {found}"
        for path in sorted(source.rglob("*.py"))
        for found in re.findall(r'(?<!Kind\.)DIRECTORY, "[^"]+"', path.read_text(encoding="utf-8"))
    ]
    assert spelled == []

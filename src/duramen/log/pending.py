"""The marker of a transaction that is under way, and how to end one whose process is gone.

``.duramen/pending.json`` stands while rows are in the files that are not committed yet, or not yet known to readers as
committed. It names the attempt, the ledger that decides about it, and the watermark before and (once all rows are on
the disk) after it:

- the ledger does not know the attempt: everything behind ``before`` is taken away, as if it had never been tried;
- the ledger knows it: the watermark becomes ``after``, and the rows stay.

Either way the marker goes last, so that a crash in between is followed by the same again. What is taken away is not
copied aside, in contrast to what recovery cuts elsewhere: nobody was ever told that it was stored, its source still has
it and sends it again, and a copy would need as much room again on a disk that may have no more. A transaction that
replaces the log builds the new one in ``.duramen/next/``; once that is committed, its files are moved. Groups and
cursors go with the old one: other records get its offsets, and who was past those would skip the new records.

Needs the writer's lock to end a transaction; readers only ask what they may see.
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, replace

from duramen.disk import Disk
from duramen.disk.base import Kind, map_if_there
from duramen.errors import CorruptionError
from duramen.formats import Format
from duramen.log import ledger
from duramen.log.directory import SUBDIRECTORIES, Directory, LogFile, list_log, sort_files
from duramen.log.ledger import Key
from duramen.log.sidecar import DIRECTORY, VERSION, Sidecar, Watermark, replace_file

NEXT = posixpath.join(DIRECTORY, "next")
"""Where the log that is to replace this one is built."""
CONFIG = posixpath.join(DIRECTORY, "log.json")
_STAYS = tuple(posixpath.join(DIRECTORY, name) for name in ("lock", "pending.json", "pending.json.new"))
"""Of the files in the sidecar these belong to the place; all others describe the rows, and come and go with them. The
directories (ledger, quarantine) stay, too."""
_POSITIONS = {
    "groups": (".snap", ".delta"),
    f"{DIRECTORY}/groups": (".snap", ".delta"),
    f"{DIRECTORY}/cursors": (".cursor",),
}
"""Where consumers keep what they have seen of the rows."""


@dataclass(frozen=True)
class Pending:
    """A transaction that has begun. ``after`` is known once all its rows are on the disk.

    One that replaces the log has no ``before``; it knows the new log's ``files``, and the ``old`` ones that none of
    them takes the place of."""

    key: Key
    ledger: str
    """The ledger's file, relative to the log's directory."""
    before: Watermark | None
    after: Watermark | None = None
    files: tuple[str, ...] = ()
    old: tuple[str, ...] = ()

    @property
    def replaces(self) -> bool:
        return self.before is None

    def ledger_path(self, root: str) -> str:
        return posixpath.normpath(posixpath.join(root, self.ledger))

    def is_committed(self, disk: Disk, root: str) -> bool:
        return self.after is not None and ledger.is_committed(disk, self.ledger_path(root), self.key)


def path_of(root: str) -> str:
    return posixpath.join(root, DIRECTORY, "pending.json")


def read(disk: Disk, root: str) -> Pending | None:
    """The marker of the log at ``root``; None where no transaction is under way."""
    path = path_of(root)
    raw = map_if_there(disk, path)
    if raw is None:
        return None
    try:
        tree = json.loads(bytes(raw))
        if tree["duramen"] != VERSION:
            raise CorruptionError("unknown version of a transaction's marker", path=path, hint="a newer program's")
        before, after = (None if mark is None else Watermark(*mark) for mark in (tree["before"], tree["after"]))
        key = Key(str(tree["writer"]), tree["batch"], str(tree["attempt"]))
        files, old = (tuple(map(str, tree[name])) for name in ("files", "old"))
        return Pending(key, str(tree["ledger"]), before, after, files, old)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"the marker of a transaction cannot be read: {error!r}",
            path=path,
            hint="delete it to keep all rows that the log holds",
        ) from error


def write(disk: Disk, root: str, pending: Pending) -> None:
    """Set the marker, on the disk when this returns."""
    tree = {
        "duramen": VERSION, **pending.key._asdict(), "ledger": pending.ledger, "before": pending.before,
        "after": pending.after, "files": pending.files, "old": pending.old,
    }  # fmt: skip
    replace_file(disk, path_of(root), json.dumps(tree, sort_keys=True).encode() + b"\n")


def remove(disk: Disk, root: str) -> None:
    """Take the marker away for good. It must not come back: later rows would be judged by it."""
    disk.remove(path_of(root))
    disk.sync_directory(posixpath.join(root, DIRECTORY))


# --- for readers


def visible(disk: Disk, root: str, fmt: Format, directory: Directory) -> tuple[Watermark, Directory] | None:
    """What readers may see of a log with a transaction under way; None where the usual rules hold."""
    pending = read(disk, root)
    if pending is None:
        return None
    mark = pending.after if pending.is_committed(disk, root) else pending.before
    if not pending.replaces:
        assert mark is not None
        return mark, directory.up_to(mark.base, mark.position)
    if mark is None or disk.kind(posixpath.join(root, NEXT, CONFIG)) == Kind.FILE:
        return None  # all of the old log is there, and it is this file that makes it the new one
    return mark, _replaced(disk, root, fmt, pending).up_to(mark.base, mark.position)


def _replaced(disk: Disk, root: str, fmt: Format, pending: Pending) -> Directory:
    """The new log's files, wherever each of them lies by now."""
    found = []
    for name in pending.files:
        if posixpath.dirname(name) != DIRECTORY:
            moved = disk.kind(posixpath.join(root, NEXT, name)) == Kind.MISSING
            place = name if moved else posixpath.join(NEXT, name)
            found.append((name, place, disk.size(posixpath.join(root, place))))
    return sort_files(root, fmt, found)


# --- for the writer and for recovery


def settle(disk: Disk, root: str, fmt: Format, sidecar: Sidecar) -> Pending | None:
    """End the transaction of a process that is gone. Answers it, without ``after`` where it was taken back; None where
    there was none."""
    pending = read(disk, root)
    if pending is None:
        return None
    if pending.is_committed(disk, root):
        ledger.settle(disk, pending.ledger_path(root))
        if pending.replaces:
            move_in(disk, root, pending)
        elif sidecar.watermark() in (None, pending.before):  # otherwise it was published, and perhaps more behind it
            assert pending.after is not None
            sidecar.mark(pending.after, durable=True)
    elif pending.before is None:
        clear_next(disk, root)
        pending = replace(pending, after=None)
    else:
        _roll_back(disk, root, fmt, sidecar, pending.before)
        pending = replace(pending, after=None)
    remove(disk, root)
    return pending


def _roll_back(disk: Disk, root: str, fmt: Format, sidecar: Sidecar, before: Watermark) -> None:
    """Take away every row behind ``before``: whole segments, the latest first, then the end of the one it lies in."""
    kept = {base: entry for base, entry in sidecar.sealed().items() if base < before.base}
    if len(kept) < len(sidecar.sealed()):
        sidecar.replace_sealed(kept.values())
    listed = list_log(disk, root, fmt)
    for files in reversed(listed.segments):
        if files.base is not None and files.base > before.base:
            _remove_all(disk, listed, [*files.derived.values(), files.segment])
    orphans = [file for file in listed.orphans if (file.name.base or 0) > before.base]
    _remove_all(disk, listed, orphans)
    for files in listed.segments:
        if files.base == before.base and files.segment.size_bytes > before.position:
            file = disk.open(listed.full(files.segment.path))
            file.truncate(before.position)
            file.sync()
            file.close()
    if sidecar.watermark() != before:
        sidecar.mark(before, durable=True)


def _remove_all(disk: Disk, listed: Directory, files: list[LogFile]) -> None:
    for file in files:
        disk.remove(listed.full(file.path))
    for directory in sorted({posixpath.dirname(listed.full(file.path)) for file in files}):
        disk.sync_directory(directory)


# --- replacing the whole log


def clear_next(disk: Disk, root: str) -> None:
    """Empty the place where a new log is built. Its directories stay: they hold nothing."""
    for name in _files_of_next(disk, root):
        disk.remove(posixpath.join(root, NEXT, name))


def _files_of_next(disk: Disk, root: str) -> list[str]:
    place = posixpath.join(root, NEXT)
    if disk.kind(place) != Kind.DIRECTORY:
        return []
    return [name for name, _ in disk.list(place, (*SUBDIRECTORIES, DIRECTORY))]


def ready(disk: Disk, root: str, fmt: Format | None, begun: Pending, after: Watermark) -> Pending:
    """The marker of a replacement whose rows are all on the disk: which files come, and which go. ``fmt`` is the old
    log's, None where there was none."""
    come = [name for name in _files_of_next(disk, root) if name not in _STAYS]
    go = [name for name, _ in disk.list(root, SUBDIRECTORIES) if fmt is not None and fmt.classify(name) is not None]
    go += [f"{DIRECTORY}/{name}" for name, _ in disk.list(posixpath.join(root, DIRECTORY))]
    go = [name for name in go if name not in _STAYS and posixpath.dirname(name) not in _POSITIONS]
    return replace(begun, after=after, files=tuple(come), old=tuple(sorted(set(go) - set(come))))


def move_in(disk: Disk, root: str, pending: Pending) -> None:
    """Give the new log's files their places. The first one makes readers turn to them; what was moved before stays.
    Positions are forgotten around that moment, and not again when this is repeated after a crash: they may be the new
    log's by then."""
    is_new = disk.kind(posixpath.join(root, NEXT, CONFIG)) == Kind.FILE
    if is_new:
        _forget_positions(disk, root)
    for name in sorted(pending.files, key=lambda name: (name != CONFIG, name)):
        source, target = posixpath.join(root, NEXT, name), posixpath.join(root, name)
        if disk.kind(source) == Kind.FILE:
            if disk.kind(posixpath.dirname(target)) == Kind.MISSING:
                disk.make_directory(posixpath.dirname(target))
            disk.replace(source, target)
        if name == CONFIG:
            disk.sync_directory(posixpath.dirname(target))
            disk.sync_directory(posixpath.dirname(source))
    if is_new:
        _forget_positions(disk, root)  # of those who did not know yet
    for name in pending.old:
        if disk.kind(posixpath.join(root, name)) == Kind.FILE:
            disk.remove(posixpath.join(root, name))
    for directory in sorted({posixpath.dirname(name) for name in (*pending.old, *pending.files)} | {""}):
        full = posixpath.join(root, directory) if directory else root
        if disk.kind(full) == Kind.DIRECTORY:
            disk.sync_directory(full)
    clear_next(disk, root)


def _forget_positions(disk: Disk, root: str) -> None:
    for name, suffixes in _POSITIONS.items():
        directory = posixpath.join(root, name)
        if disk.kind(directory) != Kind.DIRECTORY:
            continue
        gone = [file for file, _ in disk.list(directory) if file.endswith(suffixes)]
        for file in gone:
            disk.remove(posixpath.join(directory, file))
        if gone:
            disk.sync_directory(directory)

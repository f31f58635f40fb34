"""Resolving the transaction of a process that died, and replacing a whole log by a new one.

The marker is removed last, so that a crash repeats the same steps. Rows that are rolled back are not copied aside, in
contrast to what recovery cuts elsewhere: they were never acknowledged, their source still has them and sends them
again, and a copy would need as much space on a disk that may be full. A transaction that replaces the log builds the
new one in ``.duramen/next/``; after the commit, its files are moved into place. Groups and cursors are removed with the
old log: new records get its offsets, and a consumer past those would skip them.

The caller holds the writer's lock.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from duramen.disk import Disk, Kind, open_private
from duramen.formats import Format
from duramen.log.segments import SUBDIRECTORIES, Directory, LogFile, list_log, manifest_files
from duramen.sidecar import (
    CONFIG,
    DIRECTORY,
    LOCK_NAME,
    NEXT,
    TEMPORARY,
    TX_MARKER_NAME,
    Sealed,
    Sidecar,
    TxMarker,
    Watermark,
    read_tx_marker,
    remove_tx_marker,
    replace_file,
    sync_ledger,
)

_STAYS = tuple(posixpath.join(DIRECTORY, name) for name in (LOCK_NAME, TX_MARKER_NAME, TX_MARKER_NAME + TEMPORARY))
"""The files of the sidecar that belong to the directory. All others describe the rows, and are replaced with them. The
directories (ledger, quarantine) stay, too."""
_POSITIONS = {
    "groups": (".snap", ".delta"),
    f"{DIRECTORY}/groups": (".snap", ".delta"),
    f"{DIRECTORY}/cursors": (".cursor",),
}
"""Where consumers store their positions."""


def resolve_tx(disk: Disk, root: str, fmt: Format, sidecar: Sidecar) -> TxMarker | None:
    """Commit or roll back the transaction of a process that died. Returns its marker, without ``after`` if it was
    rolled back; None if no transaction was in progress."""
    marker = read_tx_marker(disk, root)
    if marker is None:
        return None
    if marker.is_committed(disk, root):
        sync_ledger(disk, marker.ledger_path(root))
        if marker.replaces:
            move_in(disk, root, marker)
        else:
            _publish(sidecar, marker.after)
    elif marker.before is None:
        clear_next(disk, root)
        marker = replace(marker, after=None)
    else:
        _roll_back(disk, root, fmt, sidecar, marker.before)
        marker = replace(marker, after=None)
    remove_tx_marker(disk, root)
    return marker


def _publish(sidecar: Sidecar, after: Watermark | None) -> None:
    """Move the watermark to the end of a committed transaction, unless it has reached that end already."""
    assert after is not None
    mark = sidecar.watermark()
    if mark is None or (mark.base, mark.position) < (after.base, after.position):
        sidecar.mark(after, durable=True)


def _roll_back(disk: Disk, root: str, fmt: Format, sidecar: Sidecar, before: Watermark) -> None:
    """Remove every row after ``before``: whole segments, the latest first, then the end of the segment it lies in."""
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
            file = open_private(disk, listed.full(files.segment.path))
            file.truncate(before.position)
            file.sync()
            file.close()
    if fmt.capabilities.manifest:
        _restore_manifest(disk, root, fmt, kept, before)
    if sidecar.watermark() != before:
        sidecar.mark(before, durable=True)


def _restore_manifest(disk: Disk, root: str, fmt: Format, sealed: Mapping[int, Sealed], before: Watermark) -> None:
    """Rewrite the manifest without the transaction. The segments and offsets that it added would look like a loss."""
    bases = [files.base for files in list_log(disk, root, fmt).segments if files.base is not None]
    ends = {base: following - 1 for base, following in pairwise(bases)} | {before.base: before.next_offset - 1}
    ends |= {base: entry.last_offset for base, entry in sealed.items()}
    for name, content in manifest_files(disk, root, fmt, [(base, ends[base]) for base in bases]).items():
        replace_file(
            disk, posixpath.join(root, name), content, temporary=posixpath.join(root, fmt.temporary_path(name))
        )


def _remove_all(disk: Disk, listed: Directory, files: list[LogFile]) -> None:
    for file in files:
        disk.remove(listed.full(file.path))
    for directory in sorted({posixpath.dirname(listed.full(file.path)) for file in files}):
        disk.sync_directory(directory)


# --- replacing the whole log


def clear_next(disk: Disk, root: str) -> None:
    """Remove the files of a new log that was being built. Its empty directories stay."""
    for name in _files_of_next(disk, root):
        disk.remove(posixpath.join(root, NEXT, name))


def _files_of_next(disk: Disk, root: str) -> list[str]:
    place = posixpath.join(root, NEXT)
    if disk.kind(place) != Kind.DIRECTORY:
        return []
    return [name for name, _ in disk.list(place, (*SUBDIRECTORIES, DIRECTORY))]


def replacement_marker(disk: Disk, root: str, fmt: Format | None, begun: TxMarker, after: Watermark) -> TxMarker:
    """The marker of a replacement whose rows are all synced: the files to move in, and those to remove. ``fmt`` is the
    old log's, None if there was none."""
    come = [name for name in _files_of_next(disk, root) if name not in _STAYS]
    go = [name for name, _ in disk.list(root, SUBDIRECTORIES) if fmt is not None and fmt.classify(name) is not None]
    go += [f"{DIRECTORY}/{name}" for name, _ in disk.list(posixpath.join(root, DIRECTORY))]
    go = [name for name in go if name not in _STAYS and posixpath.dirname(name) not in _POSITIONS]
    return replace(begun, after=after, files=tuple(come), old=tuple(sorted(set(go) - set(come))))


def move_in(disk: Disk, root: str, marker: TxMarker) -> None:
    """Move the new log's files into place. Readers switch to the new log when the first file is moved. The positions of
    consumers are removed around that moment, and not again after a crash: they may be the new log's then."""
    is_new = disk.kind(posixpath.join(root, NEXT, CONFIG)) == Kind.FILE
    if is_new:
        _forget_positions(disk, root)
    for name in sorted(marker.files, key=lambda name: (name != CONFIG, name)):
        source, target = posixpath.join(root, NEXT, name), posixpath.join(root, name)
        if disk.kind(source) == Kind.FILE:
            if disk.kind(posixpath.dirname(target)) == Kind.MISSING:
                disk.make_directory(posixpath.dirname(target))
            disk.replace(source, target)
        if name == CONFIG:
            disk.sync_directory(posixpath.dirname(target))
            disk.sync_directory(posixpath.dirname(source))
    if is_new:
        _forget_positions(disk, root)  # those of consumers that had not noticed yet
    for name in marker.old:
        if disk.kind(posixpath.join(root, name)) == Kind.FILE:
            disk.remove(posixpath.join(root, name))
    for directory in sorted({posixpath.dirname(name) for name in (*marker.old, *marker.files)} | {""}):
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

"""Opening a log for append: `open_for_append` is the list of steps, in order.

Nothing of the log is written before the lock is held, except the directory of a new log.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from duramen.disk import Disk, Kind
from duramen.errors import DetectionError, UsageError
from duramen.formats import Format, make
from duramen.log.recover.recovery import Recovered
from duramen.log.recover.table import recover
from duramen.log.recover.tx_resolve import resolve_tx
from duramen.log.segments import configured_format, described_at, detect, format_at, refuse_special_files
from duramen.sidecar import CONFIG, Config, Sidecar, read_config, replay_file_swap

DEFAULT_FORMAT = "keratin"


class OpenedLog(NamedTuple):
    """A log that this process has locked and recovered. Closing it is up to the caller."""

    disk: Disk
    sidecar: Sidecar
    recovered: Recovered
    created_ms: int
    proven_offset: int
    """The offset after the last record that was known to be durable before recovery ran."""


class _OpenRequest(NamedTuple):
    path: str
    format: str | None
    options: Mapping[str, Any]
    create: bool
    refuse: Callable[[Format], None]


def open_for_append(
    disk: Disk,
    path: str,
    format: str | None,
    options: Mapping[str, Any],
    *,
    create: bool = True,
    cut_damage: bool = False,
    now_us: int,
    refuse: Callable[[Format], None] = lambda fmt: None,
) -> OpenedLog:
    """Lock and recover the log at ``path``. ``refuse`` raises where the caller cannot use the format.

    Raises, and leaves the log unlocked, where another writer holds it, where its format is not ``format``, and where
    recovery finds damage.
    """
    wanted = _OpenRequest(path, format, options, create, refuse)
    disk = disk.within(path)
    fmt = _check_place(disk, wanted)
    disk = disk.rooted(path)
    sidecar = Sidecar(disk, path)
    try:
        sidecar.lock(make=create)
        fmt, config = _resolve_format(disk, wanted, fmt)
        swap = replay_file_swap(disk, path)
        tx = resolve_tx(disk, path, fmt, sidecar)
        if tx is not None and tx.replaces:
            fmt, config = _resolve_format(disk, wanted, None)
        proven = sidecar.watermark()
        recovered = recover(disk, path, fmt, sidecar, swap=swap, tx=tx, now_us=now_us, cut_damage=cut_damage)
        created_ms = _store_config(sidecar, config, recovered.fmt, now_us)
    except BaseException:
        sidecar.release()
        disk.unroot()
        raise
    return OpenedLog(disk, sidecar, recovered, created_ms, 0 if proven is None else proven.durable_offset)


# --- the steps


def _check_place(disk: Disk, wanted: _OpenRequest) -> Format | None:
    """The format of a place without a sidecar, whose directory is created if needed. None where a sidecar names the
    format: it is read once, after the lock is held."""
    path = wanted.path
    kind = disk.kind(path)
    if kind == Kind.FILE:
        raise UsageError("a single file cannot be opened for append", path=path, hint="open its directory")
    if kind == Kind.DIRECTORY and disk.kind(posixpath.join(path, CONFIG)) == Kind.FILE:
        return None
    fmt = _format_of_files(disk, wanted) if kind == Kind.DIRECTORY else _format_of_new(disk, wanted)
    fmt.refuse_writing(path)
    wanted.refuse(fmt)
    if disk.kind(path) == Kind.DIRECTORY:
        refuse_special_files(disk, path, fmt)
    return fmt


def _resolve_format(disk: Disk, wanted: _OpenRequest, found: Format | None) -> tuple[Format, Config | None]:
    """The log's format and its stored configuration, now that no other writer can change them. ``found`` is the format
    of a place that had no sidecar before the lock was taken."""
    config = read_config(disk, wanted.path)
    if config is None and found is not None:
        return found, None
    if config is None:
        fmt = _format_of_files(disk, wanted)
    else:
        fmt = configured_format(config, wanted.path, wanted.format, wanted.options)
    fmt.refuse_writing(wanted.path)
    wanted.refuse(fmt)
    refuse_special_files(disk, wanted.path, fmt)
    return fmt, config


def _store_config(sidecar: Sidecar, config: Config | None, fmt: Format, now_us: int) -> int:
    """Store the format and its options if they changed. Returns when the log was created."""
    created_ms = now_us // 1000 if config is None else config.created_ms
    wanted = Config(fmt.name, fmt.stored_options, created_ms)
    if config != wanted:
        sidecar.write_config(wanted)
    return created_ms


# --- a place without a sidecar


def _format_of_files(disk: Disk, wanted: _OpenRequest) -> Format:
    """The format of a directory without a sidecar: that of the files of another program, or that of a new log."""
    path, format = wanted.path, wanted.format
    if not disk.list(path, ("segments", "groups")):
        return _format_of_new(disk, wanted)
    if format is not None:
        _check_agreement(disk, path, format)
    return described_at(disk, path, format_at(disk, path, format, dict(wanted.options)))


def _format_of_new(disk: Disk, wanted: _OpenRequest) -> Format:
    fmt = make(wanted.format or DEFAULT_FORMAT, **wanted.options)
    fmt.check_creation()
    if wanted.create:
        make_directory(disk, wanted.path)
    return fmt


def make_directory(disk: Disk, path: str) -> None:
    """Create a directory, and have its name on the disk when this returns.

    Missing parents are created first and synced one by one. An existing directory is synced, too: the process that
    created it may have been killed before it did that."""
    parent = posixpath.dirname(posixpath.normpath(path)) or "."
    if disk.kind(path) == Kind.MISSING:
        if parent not in (".", "/"):
            make_directory(disk, parent)
        disk.make_directory(path)
    disk.sync_directory(parent)


def _check_agreement(disk: Disk, path: str, format: str) -> None:
    """Raise where the files have another format than the caller says: one directory would mix two formats."""
    try:
        found = detect(disk, path)
    except DetectionError:
        return
    if found.certain and found.format != format:
        raise UsageError(f"the log is {found.format}, not {format}: {found.why}", path=path)

"""The clean close of a log, ``.duramen/closed.json``: the next writer need not walk the active segment.

The file holds the watermark of the close, the state that appending to the active segment needs, and the size,
modification time and inode of every file that the next writer relies on. If all of them still match, no byte has
changed since. If one differs, or the file is missing, stale or torn, recovery walks the records. It is not synced:
losing it costs that walk.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Sequence
from typing import Any, NamedTuple

from duramen.disk import Disk, Kind, open_private, write_all
from duramen.errors import StorageError
from duramen.formats import Format
from duramen.sidecar import CLEAN_CLOSE_NAME, SMALL_BYTES, JsonFile, Watermark, sidecar_path

_CLEAN_CLOSE = JsonFile(limit_bytes=SMALL_BYTES, is_versioned=False, separator=b" ")
Stamp = tuple[int, int, int]
"""Size, modification time and inode of a file."""


def settings_of(fmt: Format) -> str:
    """The options that decide what an index holds."""
    return repr(sorted((name, value) for name, value in fmt.options.items() if name.startswith("index_")))


class CleanClose(NamedTuple):
    """The active segment at the close. ``files`` are the stamps of the files that appending relies on, by path."""

    mark: Watermark
    rows: int
    records: int
    index_progress: tuple[int, ...]
    """See `IndexBuilder.resume`."""
    first_us: int | None
    last_us: int
    settings: str
    files: dict[str, Stamp]

    def is_present(self, disk: Disk, root: str, paths: Sequence[str]) -> bool:
        """Whether exactly these files existed at the close, and none of them has changed since."""
        if sorted(paths) != sorted(self.files):
            return False
        try:
            return all(disk.stamp(posixpath.join(root, path)) == stamp for path, stamp in self.files.items())
        except StorageError:
            return False


def write_clean_close(disk: Disk, root: str, closing: CleanClose, paths: Sequence[str]) -> None:
    """Write ``closing`` with the stamps of ``paths``. A failure only costs the next writer a walk."""
    with contextlib.suppress(StorageError):
        stamps = {path: disk.stamp(posixpath.join(root, path), renew=True) for path in paths}
        content = _CLEAN_CLOSE.encode({**closing._asdict(), "mark": closing.mark.fields, "files": stamps})
        path = sidecar_path(root, CLEAN_CLOSE_NAME)
        file = open_private(disk, path) if disk.kind(path) == Kind.FILE else disk.create(path)
        try:
            write_all(file, 0, content)
            file.truncate(len(content))
        finally:
            file.close()


def read_clean_close(disk: Disk, root: str) -> CleanClose | None:
    """The clean close of the last writer; None if the file is missing or cannot be believed."""
    try:
        return _CLEAN_CLOSE.read_if_sound(disk, sidecar_path(root, CLEAN_CLOSE_NAME), _parse)
    except StorageError:
        return None


def _parse(tree: dict[str, Any]) -> CleanClose:
    files = {str(path): (int(stamp[0]), int(stamp[1]), int(stamp[2])) for path, stamp in tree.pop("files").items()}
    progress = tuple(int(number) for number in tree.pop("index_progress"))
    return CleanClose(Watermark(*tree.pop("mark")), files=files, index_progress=progress, **tree)

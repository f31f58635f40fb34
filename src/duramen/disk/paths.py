"""From a path to the file that it names: an open directory and a name in it.

`Paths` is the plain case: any path, links are followed, and a relative path keeps its meaning when the process changes
its directory. `RootedPaths` adds a rule for everything below one directory, the root: each component is opened relative
to the one above it and no symbolic link is followed, so that nothing below the root leads out of it. The root itself
may be a link. A pinned root is opened once: if it is moved it is still reached, and another directory that takes its
name is not.

`open_regular` opens what lies there, if it is a regular file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterable
from types import TracebackType

from duramen.disk.os_errors import not_regular
from duramen.disk.vfs import Buffer
from duramen.errors import StorageError

_MODE = 0o644
KNOWN_PATHS = 256
"""How many paths below a root keep their components in memory."""
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class Descriptor:
    """A descriptor that threads share. It is closed once, and never during a call: its number could by then belong to
    another file, which would get the bytes.

    Lock-free, because every call passes here twice: a user enters the list before it checks whether the descriptor is
    closed, and the closing thread marks it closed before it looks for users. List append and pop are atomic; without
    the GIL they also order what lies around them, so the closing thread passes through the list, too."""

    __slots__ = ("_closed", "_number", "_open", "_users")

    def __init__(self, number: int) -> None:
        self._number = number
        self._open = [number]  # the thread that pops it closes it
        self._users: list[None] = []
        self._closed = False

    def __enter__(self) -> int:
        self._users.append(None)
        if self._closed:
            self.__exit__(None, None, None)
            raise OSError(errno.EBADF, "The file is closed")
        return self._number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users.pop()
        if self._closed:
            self.close()

    def close(self) -> None:
        self._closed = True
        self._users.append(None)
        self._users.pop()
        if not self._users:
            try:
                number = self._open.pop()
            except IndexError:
                return
            os.close(number)

    def __del__(self) -> None:
        self.close()


class RootedPath:
    """A name in an open directory, or a path of its own. A context: leaving it closes what it opened."""

    __slots__ = ("_held", "_opened", "directory", "follow", "name")

    def __init__(self, name: str, *, follow: bool, held: Descriptor | None = None) -> None:
        self.name = name
        self.follow = follow
        """Whether a link at the name is followed."""
        self.directory = held.__enter__() if held is not None else None
        self._held = held
        """The descriptor of the directory, until the end of the context."""
        self._opened: int | None = None

    def __enter__(self) -> RootedPath:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None
        if self._held is not None:
            self._held.__exit__(None, None, None)
            self._held = None

    def descend(self, names: Iterable[str], flags: int = _STEP) -> None:
        """Open one directory below the other. If one cannot be opened, the directory is the one above it."""
        for name in names:
            opened = os.open(name, flags, dir_fd=self.directory)
            if self._opened is not None:
                os.close(self._opened)
            self.directory = self._opened = opened

    def stat(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=self.follow)

    def is_link(self) -> bool:
        """Whether the name is a link and would be followed."""
        return self.follow and _is_link(self.name, self.directory)

    def open(self, flags: int, mode: int = 0o777) -> int:
        return os.open(
            self.name, flags | os.O_CLOEXEC | (0 if self.follow else os.O_NOFOLLOW), mode, dir_fd=self.directory
        )


class Paths:
    """Any path. A relative one is relative to the current directory at the time of construction."""

    def __init__(self) -> None:
        try:
            self.here = os.getcwd()
        except FileNotFoundError:  # it was removed: only absolute paths work
            self.here = ""

    def at(self, path: str) -> str:
        if "\0" in path:
            raise StorageError("a path cannot hold a null character", path=path)
        return f"{self.here}/{path}" if path and self.here and not path.startswith("/") else path

    def reach(self, path: str) -> RootedPath:
        return RootedPath(self.at(path), follow=True)

    def is_below(self, path: str) -> bool:
        """Whether a path is the root or lies below it, where no link is followed."""
        return False

    def below(self, root: str) -> RootedPaths:
        """The same paths, with the rule for everything below ``root``."""
        return RootedPaths(root, self.here)


class RootedPaths(Paths):
    """Paths with a root. ``outer`` is a pinned root above it, from which both are reached."""

    def __init__(self, root: str, here: str, outer: RootedPaths | None = None) -> None:
        self.here = here
        self.root = root
        self._outer = outer
        self.root_at = self.at(root)
        self._prefix = root.rstrip("/") + "/"
        self._normal_prefix = posixpath.normpath(root).rstrip("/") + "/"
        self.pinned: Descriptor | None = None
        """The opened root, if it is pinned."""
        self._known: dict[str, list[str]] = {}
        """Components of the paths used last."""

    def pin(self) -> RootedPaths:
        """The same root, opened now."""
        paths = RootedPaths(self.root, self.here, self._outer)
        with self._reach_outside(self.root) as place:
            paths.pinned = Descriptor(place.open(os.O_RDONLY | os.O_DIRECTORY))
        return paths

    def below(self, root: str) -> RootedPaths:
        if self.pinned is not None and self._parts(root):
            return RootedPaths(root, self.here, self)
        return RootedPaths(root, self.here, self._outer)

    def unpin(self) -> None:
        """Use the root's path again from now on."""
        pinned, self.pinned = self.pinned, None
        if pinned is not None:
            pinned.close()

    def is_below(self, path: str) -> bool:
        return path in self._known or self._parts(path) is not None

    def reach(self, path: str) -> RootedPath:
        parts = self._known.get(path)
        if parts is None and (parts := self._parts(path)) is None:
            return self._reach_outside(path)
        pinned = self.pinned
        if pinned is None:
            return self._reach_by_path(parts)
        place = RootedPath(parts[-1] if parts else ".", follow=False, held=pinned)
        return self._step(place, parts) if len(parts) > 1 else place

    def _reach_outside(self, path: str) -> RootedPath:
        return super().reach(path) if self._outer is None else self._outer.reach(path)

    def _reach_by_path(self, parts: list[str]) -> RootedPath:
        if not parts:
            return self._reach_outside(self.root)
        if self._outer is not None:
            return self._outer.reach("/".join([self.root, *parts]))
        if len(parts) == 1:
            return RootedPath(f"{self.root_at}/{parts[0]}", follow=False)
        place = RootedPath(parts[-1], follow=False)
        place.descend([self.root_at], _STEP & ~os.O_NOFOLLOW)
        return self._step(place, parts)

    def _step(self, place: RootedPath, parts: list[str]) -> RootedPath:
        """Walk down to the directory of the last name."""
        walked = iter(parts[:-1])
        try:
            place.descend(walked)
        except BaseException as error:
            depth = len(parts) - 1 - len(list(walked))
            link = isinstance(error, OSError) and _is_link(parts[depth - 1], place.directory)
            place.__exit__(None, None, None)
            if link:
                raise not_regular(stat.S_IFLNK, self._prefix + "/".join(parts[:depth])) from None
            raise
        return place

    def _parts(self, path: str) -> list[str] | None:
        """The components below the root; None for a path that is not below it. A path may also be below the root as
        `posixpath.normpath` writes it."""
        for prefix in (self._prefix, self._normal_prefix):
            if path.startswith(prefix):
                self.at(path)  # raises for an impossible path
                parts = [part for part in path[len(prefix) :].split("/") if part not in ("", ".")]
                if ".." in parts:  # the name may come from an untrusted file
                    raise StorageError("this path leads out of the log's directory", path=path)
                if len(self._known) >= KNOWN_PATHS:
                    self._known.clear()
                self._known[path] = parts
                return parts
            if path.rstrip("/") == prefix[:-1]:
                return []
        return None


def _is_link(name: str, directory: int | None) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return False


Reach = Callable[[], RootedPath]


def open_regular(path: str, place: RootedPath, flags: int) -> int:
    """A descriptor of a regular file. O_NONBLOCK: opening a pipe must not wait for its other end. Where no link is
    followed, the file's type is checked first, because opening a device can have effects."""
    if not place.follow:
        with contextlib.suppress(FileNotFoundError):
            _check_regular(path, place.stat().st_mode)
    descriptor = place.open(flags | os.O_NOCTTY | os.O_NONBLOCK, _MODE)
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise not_regular(mode, path)


def write_whole(descriptor: int, data: Buffer, position: int) -> None:
    """Write a few bytes; a full disk takes only some of them."""
    if os.pwrite(descriptor, data, position) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

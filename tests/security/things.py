"""What a stranger can put in the place of a file or a directory of a log."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

HUGE_BYTES = 3 << 29
"""1.5 GiB, all of it a hole."""
CANARY = b"the canary: nothing of this may be read or written\n"


class Outside:
    """What lies beside the log's directory, and must stay as it is: a file, and a directory with a file in it."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "outside"
        self.file = root / "canary"
        self.directory.mkdir()
        self.inner = self.directory / "canary"
        for path in (self.file, self.inner):
            path.write_bytes(CANARY)
            os.utime(path, ns=(10**18, 2 * 10**18))  # an access time before the other: the next read changes it
        self._before = self._state()

    def imitate(self, original: Path) -> None:
        """Let the file and the directory hold what the log's own would: so that following a link would work."""
        if original.is_dir():
            shutil.copytree(original, self.directory, dirs_exist_ok=True)
        elif original.is_file():
            shutil.copyfile(original, self.file)
        for path in (self.file, *self.directory.rglob("*")):
            if path.is_file():
                os.utime(path, ns=(10**18, 2 * 10**18))
        self._before = self._state()

    def _state(self) -> dict[str, tuple[bytes, int, int]]:
        state = {}
        for path in (self.file, *sorted(self.directory.rglob("*"))):
            seen = path.stat()  # before it is read
            content = b"" if path.is_dir() else path.read_bytes()
            if path.is_file():
                os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
            state[str(path)] = (content, seen.st_mtime_ns, 0 if path.is_dir() else seen.st_atime_ns)
        return state

    def changes(self) -> list[str]:
        after = self._state()
        if after == self._before:
            return []
        names = sorted(set(after) ^ set(self._before))
        if names:
            return [f"appeared or vanished outside: {', '.join(names)}"]
        found = []
        for name, (content, mtime, atime) in after.items():
            old = self._before[name]
            if content != old[0] or mtime != old[1]:
                found.append(f"written outside: {name}")
            elif atime != old[2]:
                found.append(f"read outside: {name}")
        return found


Thing = Callable[[Path, Outside], None]


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)


def link_to_file(path: Path, outside: Outside) -> None:
    outside.imitate(path)
    _clear(path)
    path.symlink_to(outside.file)


def link_to_directory(path: Path, outside: Outside) -> None:
    outside.imitate(path)
    _clear(path)
    path.symlink_to(outside.directory)


def link_upwards(path: Path, outside: Outside) -> None:
    """Relative, with ``..`` in it."""
    target = outside.directory if path.is_dir() else outside.file
    outside.imitate(path)
    _clear(path)
    path.symlink_to(os.path.relpath(target, path.parent))


def link_to_nothing(path: Path, outside: Outside) -> None:
    _clear(path)
    path.symlink_to(outside.directory / "missing")


def link_to_itself(path: Path, outside: Outside) -> None:
    _clear(path)
    path.symlink_to(path.name)


def fifo(path: Path, outside: Outside) -> None:
    _clear(path)
    os.mkfifo(path)


def unix_socket(path: Path, outside: Outside) -> None:
    _clear(path)
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has room for 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as held:
            held.bind(path.name)
    finally:
        os.chdir(here)


def device(path: Path, outside: Outside) -> None:
    """A device that is /dev/zero: reading it would not end."""
    _clear(path)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))


def directory(path: Path, outside: Outside) -> None:
    _clear(path)
    path.mkdir()


def huge(path: Path, outside: Outside) -> None:
    """What the file holds, and then zeros without end."""
    if path.is_dir():
        _clear(path)
    with path.open("ab") as file:
        file.truncate(HUGE_BYTES)


def huge_zeros(path: Path, outside: Outside) -> None:
    _clear(path)
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)


def _content(raw: bytes) -> Thing:
    def put(path: Path, outside: Outside) -> None:
        _clear(path)
        path.write_bytes(raw)

    return put


LINKS: dict[str, Thing] = {
    "link-to-file": link_to_file, "link-to-directory": link_to_directory, "link-upwards": link_upwards,
    "link-to-nothing": link_to_nothing, "link-to-itself": link_to_itself, "fifo": fifo, "socket": unix_socket,
    "device": device, "directory": directory,
}  # fmt: skip
"""What is no regular file."""
CONTENTS: dict[str, Thing] = {
    "huge": huge, "huge-zeros": huge_zeros, "deep-list": _content(b"[" * 200_000),
    "deep-object": _content(b'{"a":' * 200_000), "number": _content(b'{"duramen": ' + b"9" * 10_000 + b"}"),
    "infinite": _content(b'{"duramen": 1e999}'), "nan": _content(b'{"duramen": NaN}'),
    "twice": _content(b'{"duramen": 1, "duramen": 1}'), "list": _content(b"[]"), "text": _content(b'"\\ud800"'),
    "null": _content(b"null"), "version": _content(json.dumps({"duramen": ["\ud800"]}).encode()),
    "empty": _content(b""),
}  # fmt: skip
"""Regular files that hold something else."""
THINGS: dict[str, Thing] = {**LINKS, **CONTENTS}


def may_make_devices(directory: Path) -> bool:
    """Whether this process can create a device: root can, elsewhere than in most containers."""
    path = directory / "device"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except OSError:
        return False
    path.unlink()
    return True

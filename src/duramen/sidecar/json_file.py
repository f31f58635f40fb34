"""State files in JSON: one codec for all of them, and a parser that hostile bytes cannot harm.

`JsonFile` describes the framing of one kind of file (version, checksum, size limit) and reads, writes and atomically
replaces files of that kind. A file that is missing reads as None; a file that is not what Duramen wrote raises
`CorruptionError` with its path and a hint, or reads as None where the content is only an optimisation.

A state file comes with the directory, and the directory may come from an untrusted source. So `read_state_file` reads
no more than the limit of the file's kind, `parse_json` accepts only plain JSON within bounds, and `inside_log` refuses
a path that leads out of the log's directory.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from duramen import kernel
from duramen.disk import Disk, Kind, map_if_exists, write_all
from duramen.errors import CorruptionError, LimitError, UnknownVersionError

VERSION = 1
"""The version of every state file, under the key ``duramen``."""
STATE_BYTES = 8 << 20
"""Largest state file. A file with one line per file of the log stays below it up to 50,000 files."""
SMALL_BYTES = 64 << 10
"""Largest state file that holds a single fact: a cursor, a hold, a measurement."""
MAX_CONTAINERS = 200_000
"""Most lists and objects in one file: each needs far more memory than its two bytes."""
MAX_DEPTH = 32
TEMPORARY = ".new"
"""Suffix of the file that is about to replace another one."""
_LOWEST, _HIGHEST = -(2**63), 2**64 - 1
_DIGITS = 20
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_LARGE = re.compile(rb"[0-9]{20}|-[0-9]{19}|[0-9][eE][^-]")
"""What a number may look like that is too large: only then is each number checked. It may also stand in a string."""
_BRACKET = re.compile(rb"[\[\]{}]")
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError)
T = TypeVar("T")


@dataclass(frozen=True)
class JsonFile:
    """The framing of one kind of state file.

    ``what`` and ``hint`` go into the error for a file that cannot be read. ``separator`` stands between the JSON and
    its CRC-32C in hexadecimal; None for a file without a checksum.
    """

    what: str = ""
    hint: str = ""
    limit_bytes: int = STATE_BYTES
    is_versioned: bool = True
    separator: bytes | None = None
    indent: int | None = None
    sort_keys: bool = True
    end: bytes = b"\n"

    def encode(self, tree: Mapping[str, Any]) -> bytes:
        if self.is_versioned:
            tree = {"duramen": VERSION, **tree}
        body = json.dumps(tree, indent=self.indent, sort_keys=self.sort_keys).encode()
        return body + self.end if self.separator is None else add_checksum(body, self.separator)

    def decode(self, raw: bytes, parse: Callable[[Any], T], path: str | None = None) -> T:
        """What ``parse`` makes of the JSON. Raises `CorruptionError` if the bytes are not a file of this kind, or
        ``parse`` raises."""
        try:
            tree = parse_json(raw if self.separator is None else checked_body(raw, self.separator))
            version = tree.pop("duramen") if self.is_versioned else VERSION
            if version != VERSION:
                hint = "use the version of Duramen that wrote it, or a newer one"
                raise CorruptionError(f"unknown version {version!r} of {self.what}", path=path, hint=hint)
            return parse(tree)
        except _UNREADABLE as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise CorruptionError(f"{self.what} cannot be read: {reason}", path=path, hint=self.hint) from error

    def read(self, disk: Disk, path: str, parse: Callable[[Any], T]) -> T | None:
        """`decode` of the file at ``path``; None if it is missing."""
        raw = read_state_file(disk, path, self.limit_bytes)
        return None if raw is None else self.decode(raw, parse, path)

    def read_if_sound(self, disk: Disk, path: str, parse: Callable[[Any], T]) -> T | None:
        """`read`, with None also for a file that cannot be decoded: for state that a log can do without."""
        try:
            return self.read(disk, path, parse)
        except CorruptionError:
            return None

    def replace(self, disk: Disk, path: str, tree: Mapping[str, Any]) -> None:
        """Replace the file at ``path`` atomically and durably. Raises `LimitError` if no reader would accept it."""
        replace_file(disk, path, check_state_size(self.encode(tree), path, self.limit_bytes))


def add_checksum(body: bytes, separator: bytes = b" ") -> bytes:
    """``body``, the separator, the CRC-32C of ``body`` in hexadecimal, and a line feed."""
    return body + separator + b"%08x\n" % kernel.crc32c(body)


def checked_body(raw: bytes, separator: bytes = b" ") -> bytes:
    """The body that `add_checksum` was called with. Raises `ValueError` if the checksum does not match."""
    body, _, crc = raw.rstrip(b"\n").rpartition(separator)
    if crc != b"%08x" % kernel.crc32c(body):
        raise ValueError("checksum mismatch")
    return body


def replace_file(disk: Disk, path: str, content: bytes, *, temporary: str | None = None) -> None:
    """Put ``content`` at ``path`` durably; a crash leaves the old file or the new one, complete."""
    temporary = temporary or path + TEMPORARY
    create_file(disk, temporary, content)
    disk.replace(temporary, path)
    disk.sync_directory(posixpath.dirname(path))
    if posixpath.dirname(temporary) != posixpath.dirname(path):
        disk.sync_directory(posixpath.dirname(temporary))


def create_file(disk: Disk, path: str, content: bytes | memoryview) -> None:
    """Create a file and sync its content, not its name. A stale file of that name is removed first."""
    if disk.kind(path) != Kind.MISSING:
        disk.remove(path)
    file = disk.create(path)
    try:
        write_all(file, 0, content)
        file.sync()
    finally:
        file.close()


def read_state_file(disk: Disk, path: str, limit_bytes: int = STATE_BYTES) -> bytes | None:
    """The bytes of a state file; None if no regular file has that name. `CorruptionError` if it is too large."""
    data = map_if_exists(disk, path)
    return None if data is None else bounded_copy(data, path, limit_bytes)


def bounded_copy(data: memoryview, path: str, limit_bytes: int) -> bytes:
    """A copy of ``data``; `CorruptionError` if it is larger than a file of its kind can be."""
    if len(data) > limit_bytes:
        raise CorruptionError(
            f"the file has {len(data)} bytes; a file of its kind has at most {limit_bytes}",
            path=path,
            hint="Duramen did not write it: move it away, or restore it from a copy",
        )
    return bytes(data)


def check_state_size(content: bytes, path: str, limit_bytes: int = STATE_BYTES) -> bytes:
    """``content``, unchanged; `LimitError` if it is larger than a reader accepts."""
    if len(content) > limit_bytes or content.count(b"{") + content.count(b"[") > MAX_CONTAINERS:
        raise LimitError(
            f"a state file of {len(content)} bytes is too large (at most {limit_bytes}): too many files change at once",
            path=path,
            hint="change fewer files at once; nothing was changed",
        )
    return content


def parse_json(raw: bytes) -> Any:
    """The JSON in ``raw``; `ValueError` if it is not plain JSON within the bounds.

    >>> parse_json(b'{"offset": 7}')
    {'offset': 7}
    >>> parse_json(b'{"offset": 7, "offset": 8}')
    Traceback (most recent call last):
    ValueError: the key 'offset' is given twice
    """
    if raw.count(b"{") + raw.count(b"[") > MAX_CONTAINERS:
        raise ValueError(f"more than {MAX_CONTAINERS} lists and objects")
    _check_depth(raw)
    decoder = _CHECKED_DECODER if _LARGE.search(raw) else _DECODER
    return decoder.decode(raw.decode("utf-8"))


def encode_line(tree: Mapping[str, Any]) -> bytes:
    """One line of JSON followed by its CRC32C in hexadecimal: ``{"duramen": 1, "offset": 7} 1a2b3c4d``."""
    return add_checksum(json.dumps({"duramen": VERSION, **tree}).encode())


def decode_line(raw: bytes | memoryview) -> dict[str, Any]:
    """Parse what `encode_line` wrote; `CorruptionError` for anything else.

    >>> decode_line(encode_line({"offset": 7}))["offset"]
    7
    """
    if len(raw) > SMALL_BYTES:
        raise CorruptionError(
            f"the file has {len(raw)} bytes; a file of its kind has at most {SMALL_BYTES}", position=SMALL_BYTES
        )
    body, _, crc = bytes(raw).rstrip(b"\n").rpartition(b" ")
    if crc != b"%08x" % kernel.crc32c(body) or not bytes(raw).endswith(b"\n"):
        raise CorruptionError("checksum mismatch", position=len(body))
    try:
        tree = parse_json(body)
    except ValueError as error:
        raise CorruptionError(f"invalid JSON: {error}", position=0) from error
    if not isinstance(tree, dict):
        raise CorruptionError("not a JSON object", position=0)
    if tree.pop("duramen", None) != VERSION:
        raise UnknownVersionError("unknown version of the file", position=0)
    return tree


def inside_log(path: str) -> str:
    """``path``, relative to the log's directory, unchanged; `ValueError` if it leads out of that directory.

    >>> inside_log("segments/0.log")
    'segments/0.log'
    >>> inside_log("../events/0.log")
    Traceback (most recent call last):
    ValueError: the path '../events/0.log' leads out of the log's directory
    """
    parts = path.split("/")
    if not path or "\0" in path or posixpath.isabs(path) or ".." in parts:
        raise ValueError(f"the path {path!r} leads out of the log's directory")
    return path


def _check_depth(raw: bytes) -> None:
    """Raise `ValueError` for deep nesting before a recursive parser meets it."""
    if raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", raw)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def _integer(text: str) -> int:
    number = int(text) if len(text) <= _DIGITS else _HIGHEST + 1
    if not _LOWEST <= number <= _HIGHEST:
        raise ValueError(f"a number of {len(text)} digits, more than 64 bits hold")
    return number


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:32]} is not finite")
    return number


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:64]!r} is given twice")
    return tree


_DECODER = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_object)
_CHECKED_DECODER = json.JSONDecoder(
    parse_int=_integer, parse_float=_number, parse_constant=_no_number, object_pairs_hook=_object
)

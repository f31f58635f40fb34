"""One line of JSON with its checksum: the form of small state files in the sidecar. People can read it, a torn or
changed one is noticed.

::

    {"duramen": 1, "name": "reader", "offset": 7} 1a2b3c4d\\n

Knows nothing of files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from duramen.errors import CorruptionError, UnknownVersionError
from duramen.formats.stroma import CRC, with_crc

VERSION = 1
MAX_BYTES = 64 << 10


def encode_line(tree: Mapping[str, Any]) -> bytes:
    body = json.dumps({"duramen": VERSION, **tree}).encode()
    return body + b" " + with_crc(body)[-CRC.size :].hex().encode() + b"\n"


def decode_line(raw: bytes | memoryview) -> dict[str, Any]:
    """What the line says. Raises `CorruptionError` where it is not what `encode_line` wrote.

    >>> decode_line(encode_line({"offset": 7}))["offset"]
    7
    """
    if len(raw) > MAX_BYTES:
        raise CorruptionError(f"the file has {len(raw)} bytes, more than any such file", position=MAX_BYTES)
    body, _, crc = bytes(raw).rstrip(b"\n").rpartition(b" ")
    if crc != with_crc(body)[-CRC.size :].hex().encode() or not bytes(raw).endswith(b"\n"):
        raise CorruptionError("checksum mismatch", position=len(body))
    try:
        tree = json.loads(body)
    except ValueError as error:
        raise CorruptionError(f"no JSON: {error}", position=0) from error
    if not isinstance(tree, dict):
        raise CorruptionError("no JSON object", position=0)
    if tree.pop("duramen", None) != VERSION:
        raise UnknownVersionError("unknown version of the file", position=0)
    return tree

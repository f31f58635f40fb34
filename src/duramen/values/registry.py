"""Schemas by their ids: from a directory, or from a registry with Confluent's HTTP interface.

In a directory, ``ID.avsc`` holds an Avro schema, ``ID.json`` a JSON Schema, ``ID.desc`` a descriptor set of Protobuf.
What a URL gave is kept in the process, and in ``.duramen/schemas`` of a local log that has a sidecar which this
process may write to.
"""

from __future__ import annotations

import json
import posixpath
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from duramen.disk import Kind, PosixDisk
from duramen.errors import StorageError, UsageError
from duramen.sidecar import StoredSchema, read_schema, write_schema
from duramen.values.schemas import MAX_SCHEMA_BYTES, file_bytes

TIMEOUT_S = 10
"""For a registry to answer or to send more."""
DEADLINE_S = 30
"""For the whole of an answer."""
UNKNOWN_S = 60
"""How long an id stays unknown that a registry did not know: damaged values hold many such ids."""
MAX_UNKNOWN = 10_000
KINDS = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
_FILES = {".avsc": "avro", ".json": "json", ".desc": "protobuf"}
MAX_REFERENCES = 64


class UnknownSchemaError(Exception):
    """The registry has no such schema."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema. ``text`` is JSON, or a descriptor in base64; ``imported`` are the texts that it refers to."""

    kind: str
    text: str
    imported: tuple[str, ...] = ()
    is_set: bool = False
    """Whether the text is a whole descriptor set."""


@dataclass(frozen=True)
class Registry:
    """Where schemas come from. ``log`` is the local log beside which those of a URL are kept."""

    where: str = field(repr=False)  # may hold a password
    log: str | None = None
    _found: dict[int, RegisteredSchema] = field(default_factory=dict, compare=False, repr=False)
    _unknown: dict[int, float] = field(default_factory=dict, compare=False, repr=False)
    """Until when an id is not asked for again."""

    def __post_init__(self) -> None:
        try:
            public(self.where)
        except ValueError as error:
            raise UsageError(f"the registry has no valid address: {error}") from error

    def schema(self, number: int) -> RegisteredSchema:
        """The schema with that id. Raises `UnknownSchemaError` if the registry does not know it."""
        if number not in self._found:
            self._found[number] = self._fetched(number) if is_url(self.where) else self._from_directory(number)
        return self._found[number]

    def _from_directory(self, number: int) -> RegisteredSchema:
        disk = PosixDisk()
        if disk.kind(self.where) != Kind.DIRECTORY:
            raise UsageError("the registry is neither a directory nor a URL", path=self.where)
        for suffix, kind in _FILES.items():
            path = posixpath.join(self.where, f"{number}{suffix}")
            if disk.kind(path) == Kind.FILE:
                data = file_bytes(path)
                is_set = kind == "protobuf"
                text = b64encode(data).decode() if is_set else data.decode("utf-8", "replace")
                return RegisteredSchema(kind, text, is_set=is_set)
        raise UnknownSchemaError(f"the registry has no file for the schema {number}")

    def _fetched(self, number: int) -> RegisteredSchema:
        kept = None if self.log is None else read_schema(PosixDisk(), self.log, self.where, number)
        if kept is not None and kept.kind in KINDS.values():
            return RegisteredSchema(kept.kind, kept.text, kept.imported)
        if time.time() < self._unknown.get(number, 0):
            raise UnknownSchemaError(f"the registry does not know the schema {number}")
        try:
            tree = fetch(self.where, f"schemas/ids/{number}?format=serialized")
        except UnknownSchemaError as error:
            if len(self._unknown) >= MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown[number] = time.time() + UNKNOWN_S
            raise UnknownSchemaError(f"the registry does not know the schema {number}") from error
        found = _registered(self.where, tree)
        if self.log is not None:
            write_schema(
                PosixDisk(), self.log, self.where, number, StoredSchema(found.kind, found.text, found.imported)
            )
        return found


def is_url(where: str) -> bool:
    return where.startswith(("http://", "https://"))


def _registered(url: str, tree: Any) -> RegisteredSchema:
    try:
        kind, text = str(tree.get("schemaType") or "AVRO"), str(tree["schema"])
        references = list(tree.get("references") or [])
        imported = _imported(url, references, set())
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise StorageError(f"the registry returned no schema: {error}", path=public(url)) from error
    if kind not in KINDS:
        raise UnknownSchemaError(f"its schema is of the kind {kind!r}, which is not known")
    return RegisteredSchema(KINDS[kind], text, tuple(imported))


def _imported(url: str, references: list[Any], seen: set[tuple[str, int]]) -> list[str]:
    """The schemas that one refers to, those first that others need."""
    found: list[str] = []
    for reference in references:
        key = str(reference["subject"]), int(reference["version"])
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > MAX_REFERENCES:
            raise StorageError(f"a schema refers to more than {MAX_REFERENCES} others", path=public(url))
        tree = fetch(url, f"subjects/{quote(key[0], safe='')}/versions/{key[1]}?format=serialized")
        text = str(tree["schema"])
        if tree.get("schemaType") == "JSON":
            text = _named(text, str(reference["name"]))
        found += [*_imported(url, list(tree.get("references") or []), seen), text]
    return found


def _named(text: str, name: str) -> str:
    """A JSON Schema whose identifier is the name by which another one refers to it."""
    return json.dumps({**json.loads(text), "$id": name})


def public(url: str) -> str:
    """A URL without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@lru_cache(maxsize=8)
def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NoRedirects)


def _answer(request: urllib.request.Request) -> bytes | int | str:
    """What the registry sends, the HTTP status of a refusal, or why it cannot be reached. A thread reads it, because no
    timeout of a socket bounds a server that sends byte by byte."""
    found: list[bytes | int | str] = []

    def read() -> None:
        try:
            with _opener().open(request, timeout=TIMEOUT_S) as answer:
                found.append(answer.read(MAX_SCHEMA_BYTES + 1))
        except urllib.error.HTTPError as error:
            with error:
                found.append(error.code)
        except (OSError, ValueError, HTTPException) as error:
            found.append(str(error) or type(error).__name__)

    thread = threading.Thread(target=read, name="duramen-registry", daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    return found[0] if found else f"it sent no whole answer in {DEADLINE_S} seconds"


def fetch(url: str, path: str) -> Any:
    """An object that the registry returns."""
    parts, shown = urlsplit(url), public(url)
    request = urllib.request.Request(shown.rstrip("/") + "/" + path)
    request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
    if parts.username is not None:
        given = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + b64encode(given.encode()).decode())
    data = _answer(request)
    if data == 404:
        raise UnknownSchemaError(f"the registry does not know {path.partition('?')[0]}")
    if isinstance(data, int):
        raise StorageError(f"the registry answered with HTTP {data}", path=shown)
    if isinstance(data, str):
        raise StorageError(f"the registry cannot be reached: {data}", path=shown)
    if len(data) > MAX_SCHEMA_BYTES:
        raise StorageError(f"the registry sent more than {MAX_SCHEMA_BYTES} bytes", path=shown)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StorageError("the registry sent no JSON", path=shown) from error
    if not isinstance(tree, dict):
        raise StorageError("the registry sent no JSON object", path=shown)
    return tree

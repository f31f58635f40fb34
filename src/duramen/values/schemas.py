"""Types of fields, from text: a DDL as Spark writes it, or a JSON Schema. Texts may lie in files."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urljoin

import pyarrow as pa

from duramen.disk import PosixDisk
from duramen.errors import UsageError
from duramen.record import TIMESTAMP

MAX_SCHEMA_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_FIELDS = 10_000
"""Fields of a type, each use of a named type counted: a short schema can describe an exponential number of them."""

_DDL_TYPES = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(),
    "real": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": TIMESTAMP.type, "timestamp_ntz": pa.timestamp("us"), "decimal": pa.decimal128(10, 0),
}  # fmt: skip
_TOKEN = re.compile(r"\s*(`[^`]+`|[A-Za-z_][\w]*|\d+|[<>(),:])")
_HINT = "for example 'id bigint, name string, tags array<string>'"


class FieldBudget:
    """Counts the fields of a type while it is built."""

    def __init__(self) -> None:
        self._left = MAX_FIELDS

    def spend(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError(f"it has more than {MAX_FIELDS:,} fields, with those of each use of a type")


def text_of(schema: str) -> str:
    """The text itself, or what the file holds that it names after ``@``."""
    return file_bytes(schema[1:]).decode("utf-8", "replace") if schema.startswith("@") else schema


def file_bytes(path: str) -> bytes:
    """A file that describes values, up to a bound."""
    data = PosixDisk().map(path).data
    if len(data) > MAX_SCHEMA_BYTES:
        raise UsageError(f"a schema has at most {MAX_SCHEMA_BYTES} bytes (got {len(data)})", path=path)
    return bytes(data)


def struct_of(schema: Any) -> pa.StructType:
    """The columns that a schema names: an Arrow schema or struct, a DDL text, or a JSON Schema.

    >>> struct_of("id bigint, tags array<string>")
    StructType(struct<id: int64, tags: list<item: string>>)
    >>> struct_of('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    StructType(struct<id: int64>)
    """
    if isinstance(schema, pa.Schema):
        return pa.struct(list(schema))
    if isinstance(schema, pa.StructType):
        return schema
    if isinstance(schema, dict):
        return of_json_schema(schema)
    if not isinstance(schema, str):
        raise UsageError(f"a schema is text, a dict or an Arrow schema (got {type(schema).__name__})", hint=_HINT)
    text = text_of(schema)
    return of_json_schema(_parsed(text)) if text.lstrip().startswith("{") else _Ddl(text).struct()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the schema is not valid JSON: {error}") from error


class _Ddl:
    """Parses ``name type, name type``. A type may be followed by ``NOT NULL``, which changes nothing."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(f"unexpected {text[at : at + 10].strip()!r}")
            self._tokens.append(found[1])
            at = found.end()
        self._tokens.reverse()

    def _wrong(self, why: str) -> UsageError:
        return UsageError(f"the schema {self._text[:80]!r} cannot be read: {why}", hint=_HINT)

    def _next(self, wanted: str | None = None) -> str:
        found = self._tokens.pop() if self._tokens else "the end"
        if wanted is not None and found != wanted:
            raise self._wrong(f"expected {wanted!r} and got {found!r}")
        return found

    def _peek(self) -> str:
        return self._tokens[-1] if self._tokens else ""

    def struct(self) -> pa.StructType:
        found = self._fields("", 0)
        if self._tokens:
            raise self._wrong(f"unexpected {self._peek()!r}")
        return found

    def _fields(self, end: str, depth: int) -> pa.StructType:
        fields: list[pa.Field] = []
        while self._peek() != end:
            name = self._next()
            if not re.fullmatch(r"`[^`]+`|\w+", name):
                raise self._wrong(f"{name!r} is not a name")
            if self._peek() == ":":
                self._next()
            fields.append(pa.field(name.strip("`"), self._type(depth)))
            if self._peek() != end:
                self._next(",")
        names = [field.name for field in fields]
        if not fields or len(set(names)) < len(names):
            raise self._wrong("a field is given twice" if fields else "it names no field")
        return pa.struct(fields)

    def _type(self, depth: int) -> pa.DataType:
        if depth > MAX_DEPTH:
            raise self._wrong(f"it is nested more than {MAX_DEPTH} levels deep")
        name = self._next().lower()
        if name == "array":
            self._next("<")
            kind = pa.list_(self._type(depth + 1))
            self._next(">")
        elif name == "map":
            self._next("<")
            key = self._type(depth + 1)
            self._next(",")
            kind = pa.map_(key, self._type(depth + 1))
            self._next(">")
        elif name == "struct":
            self._next("<")
            kind = self._fields(">", depth + 1)
            self._next(">")
        elif name in _DDL_TYPES:
            kind = self._decimal() if name == "decimal" and self._peek() == "(" else _DDL_TYPES[name]
        else:
            raise self._wrong(f"the type {name!r} is not known")
        if self._peek().lower() == "not":
            self._next()
            if self._next().lower() != "null":
                raise self._wrong("NOT stands before NULL only")
        return kind

    def _decimal(self) -> pa.DataType:
        self._next("(")
        precision, scale = self._next(), "0"
        if self._peek() == ",":
            self._next()
            scale = self._next()
        self._next(")")
        if not (precision.isdigit() and scale.isdigit() and int(scale) <= int(precision) and 1 <= int(precision) <= 38):
            raise self._wrong(f"decimal({precision}, {scale}) is not possible")
        return pa.decimal128(int(precision), int(scale))


# --- JSON Schema


_JSON_TYPES = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}


def of_json_schema(tree: Any) -> pa.StructType:
    """The columns of the objects that a JSON Schema describes. What it constrains beyond types is not checked."""
    try:
        found = _JsonSchema(tree).type(tree, 0)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"the JSON Schema cannot be used: {error}") from error
    if not pa.types.is_struct(found):
        raise UsageError("the JSON Schema does not describe an object with properties", hint=_HINT)
    return found


def bundled(schema: Any, others: dict[str, Any]) -> Any:
    """A JSON Schema that embeds the others, under the identifiers by which it refers to them."""
    embedded = {f"registered {name}": {**other, "$id": name} for name, other in others.items()}
    return {**schema, "$defs": {**schema.get("$defs", {}), **embedded}}


class _JsonSchema:
    """Finds the types that a JSON Schema describes. ``others`` are the schemas that it embeds, by identifier."""

    def __init__(self, root: Any, others: dict[str, Any] | None = None, budget: FieldBudget | None = None) -> None:
        self._root = root
        embedded = root.get("$defs", {}).values()
        self._others = others or {each["$id"]: each for each in embedded if isinstance(each, dict) and "$id" in each}
        self._budget = budget or FieldBudget()

    def type(self, tree: Any, depth: int) -> pa.DataType:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is recursive, or nested more than {MAX_DEPTH} levels deep")
        if "$ref" in tree:
            return self._referenced(tree["$ref"], depth + 1)
        for name in ("oneOf", "anyOf"):
            if name in tree:
                return self.type(_only([each for each in tree[name] if each.get("type") != "null"], name), depth + 1)
        kind = tree.get("type", "object" if "properties" in tree else None)
        if isinstance(kind, list):
            kind = _only([each for each in kind if each != "null"], "type")
        if kind == "object" and tree.get("properties"):
            self._budget.spend(len(tree["properties"]))
            return pa.struct([(name, self.type(each, depth + 1)) for name, each in tree["properties"].items()])
        if kind == "array":
            return pa.list_(self.type(tree["items"], depth + 1))
        if kind not in _JSON_TYPES:
            raise ValueError(f"the type {kind!r} has no column type")
        return _JSON_TYPES[kind]

    def _referenced(self, ref: str, depth: int) -> pa.DataType:
        """The type at a place of this schema, or of an embedded one."""
        name, _, pointer = ref.partition("#")
        inside, own = self, str(self._root.get("$id", ""))
        if name and name != own:
            found = self._others.get(name, self._others.get(urljoin(own, name)))
            if found is None:
                raise ValueError(f"the reference {ref!r} leads out of the schema")
            inside = _JsonSchema(found, self._others, self._budget)
        place = inside._root
        for part in pointer.split("/")[1:]:
            place = place[part.replace("~1", "/").replace("~0", "~")]
        return inside.type(place, depth)


def _only(found: list[Any], name: str) -> Any:
    if len(found) != 1:
        raise ValueError(f"{name} of several types has no column type")
    return found[0]

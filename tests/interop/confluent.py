"""Confluent's own serializers and Duramen: ``python -m tests.interop.confluent``.

The serializers for Avro, JSON Schema and Protobuf of `confluent-kafka` register their schemas, with references and in
several versions, at a registry that listens on loopback, and frame values. Duramen appends these to logs and decodes
them from the files, on the command line and in Spark, with the schemas of the same registry. Each is compared with what
Confluent's deserializers make of the bytes that the log returns. Exits with 1 if anything differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote
from uuid import UUID

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

import duramen
from duramen.spark.local_session import session
from tests.interop.kafka.checks import Checks, tell

COUNT = 300
FORMATS = ("kafka", "keratin", "osiris")

# --- the registry


class Registry:
    """What a registry does when schemas are registered and asked for, and who asked."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []

    def register(self, subject: str, schema: dict[str, Any]) -> dict[str, Any]:
        kept = {name: schema[name] for name in ("schema", "schemaType", "references") if schema.get(name)}
        if kept not in self.schemas:
            self.schemas.append(kept)
        versions, number = self.subjects.setdefault(subject, []), self.schemas.index(kept) + 1
        if number not in versions:
            versions.append(number)
        return {**kept, "subject": subject, "id": number, "version": versions.index(number) + 1}

    def by_id(self, number: int, *, serialized: bool) -> dict[str, Any]:
        """Of Protobuf the source, unless the serialized form is asked for."""
        found = self.schemas[number - 1]
        hidden = found.get("schemaType") == "PROTOBUF" and not serialized
        return {**found, "schema": "the source"} if hidden else found

    def answer(self, method: str, path: str, query: str, body: Any) -> dict[str, Any]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[0] == "subjects" and method == "POST":
            return self.register(parts[1], body)
        serialized = "format=serialized" in query
        if parts[:2] == ["schemas", "ids"]:
            return self.by_id(int(parts[2]), serialized=serialized)
        versions = self.subjects[parts[1]]
        version = len(versions) if parts[3] == "latest" else int(parts[3])
        number = versions[version - 1]
        found = self.by_id(number, serialized=serialized)
        return {**found, "subject": parts[1], "id": number, "version": version}


class Handler(BaseHTTPRequestHandler):
    registry: Registry

    def handle_one(self) -> None:
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.registry.asked.append(f"{self.command} {self.path} {self.headers.get('User-Agent')}")
        try:
            status, found = 200, self.registry.answer(self.command, path, query, body)
        except (LookupError, ValueError):
            status, found = 404, {"error_code": 40403, "message": "not found"}
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = handle_one  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def serving(registry: Registry) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"registry": registry}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# --- Avro


class Produced(NamedTuple):
    """Values of a serializer, and what reads them."""

    values: list[bytes]
    deserialize: Callable[[bytes], Any]


def framed(serialize: Any, tree: Any) -> bytes:
    return bytes(serialize(tree, SerializationContext("orders", MessageField.VALUE)))


def reading(deserializer: Any) -> Callable[[bytes], Any]:
    return lambda value: deserializer(value, SerializationContext("orders", MessageField.VALUE))


WOOD = {"type": "enum", "name": "Wood", "namespace": "shop", "symbols": ["OAK", "ASH"]}
FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"}, {"name": "wood", "type": "shop.Wood"},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "raw", "type": "bytes"}, {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
    {"name": "sizes", "type": {"type": "array", "items": "double"}},
    {"name": "counts", "type": {"type": "map", "values": "int"}},
    {"name": "part", "type": {"type": "record", "name": "Part", "fields": [{"name": "n", "type": "int"}]}},
]  # fmt: skip
LATER = {"name": "late", "type": "string", "default": "never"}


def avro(client: Any) -> Produced:
    """Two versions of a schema that refers to another one; the newer one has a field more."""
    client.register_schema("wood", Schema(json.dumps(WOOD), "AVRO"))
    references = [SchemaReference("shop.Wood", "wood", 1)]
    texts = [
        json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})
        for fields in (FIELDS, [*FIELDS, LATER])
    ]
    old, new = (AvroSerializer(client, Schema(text, "AVRO", references)) for text in texts)
    values = []
    for number in range(COUNT):
        tree = {
            "id": number - 2**40, "wood": "ASH", "price": Decimal(number - 7).scaleb(-2),
            "at": datetime(2024, 2, 29, 12, 0, 0, number, tzinfo=UTC), "day": date(1969, 12, 1 + number % 30),
            "key": str(UUID(int=number)), "note": None if number % 3 else "grün", "raw": bytes([number % 256, 0]),
            "hash": b"abcd", "sizes": [number / 7] * (number % 4), "counts": {"x": number}, "part": {"n": -number},
        }  # fmt: skip
        values.append(framed(new, {**tree, "late": f"late {number}"}) if number % 2 else framed(old, tree))
    return Produced(values, reading(AvroDeserializer(client, Schema(texts[1], "AVRO", references))))


# --- JSON Schema

PART = {
    "$id": "part.json", "type": "object",
    "properties": {"n": {"type": "integer"}, "deep": {"type": "array", "items": {"$ref": "#/definitions/x"}}},
    "definitions": {"x": {"type": "object", "properties": {"x": {"type": "number"}}}},
}  # fmt: skip
ORDER = {
    "$id": "order.json", "title": "order", "type": "object", "required": ["id"],
    "properties": {
        "id": {"type": "integer"}, "name": {"type": "string"}, "ratio": {"type": "number"},
        "open": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"type": ["string", "null"]},
        "part": {"$ref": "part.json"},
    },
}  # fmt: skip


def json_schema(client: Any) -> Produced:
    client.register_schema("part", Schema(json.dumps(PART), "JSON"))
    schema = Schema(json.dumps(ORDER), "JSON", [SchemaReference("part.json", "part", 1)])
    serialize = JSONSerializer(schema, client)
    values = [
        framed(serialize, {
            "id": number - 2**52, "name": "grün \u0000\"", "ratio": number / 3, "open": number % 2 == 0,
            "tags": ["a"] * (number % 3), "note": None if number % 3 else "n",
            "part": {"n": number, "deep": [{"x": 0.5}, {"x": -1e300}]},
        })
        for number in range(COUNT)
    ]  # fmt: skip
    return Produced(values, reading(JSONDeserializer(schema, schema_registry_client=client)))


# --- Protobuf

F = descriptor_pb2.FieldDescriptorProto


def add_fields(message: Any, *fields: tuple[str, int, str, bool]) -> None:
    for number, (name, kind, type_name, repeated) in enumerate(fields, 1):
        label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)


def protobuf_classes() -> tuple[Any, Any]:
    """``shop.Cart`` of a file that imports two others, and a message nested in its second message."""
    wood = descriptor_pb2.FileDescriptorProto(name="shop/wood.proto", package="shop", syntax="proto3")
    add_fields(
        wood.message_type.add(name="Wood"), ("name", F.TYPE_STRING, "", False), ("age", F.TYPE_SINT32, "", False)
    )
    cart = descriptor_pb2.FileDescriptorProto(
        name="shop/cart.proto", package="shop", syntax="proto3",
        dependency=["shop/wood.proto", "google/protobuf/timestamp.proto"],
    )  # fmt: skip
    add_fields(
        cart.message_type.add(name="Cart"),
        ("id", F.TYPE_INT64, "", False), ("big", F.TYPE_FIXED64, "", False),
        ("woods", F.TYPE_MESSAGE, ".shop.Wood", True),
        ("at", F.TYPE_MESSAGE, ".google.protobuf.Timestamp", False), ("ratio", F.TYPE_FLOAT, "", False),
        ("raw", F.TYPE_BYTES, "", False), ("open", F.TYPE_BOOL, "", False),
    )  # fmt: skip
    outer = cart.message_type.add(name="Outer")
    outer.nested_type.add(name="Unused")
    add_fields(outer.nested_type.add(name="Line"), ("id", F.TYPE_INT64, "", False), ("what", F.TYPE_STRING, "", False))
    pool = descriptor_pool.DescriptorPool()
    for file in (descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb), wood, cart):
        pool.Add(file)
    found = [pool.FindMessageTypeByName(name) for name in ("shop.Cart", "shop.Outer.Line")]
    return message_factory.GetMessageClass(found[0]), message_factory.GetMessageClass(found[1])


def protobuf(client: Any) -> Produced:
    cart, _ = protobuf_classes()
    serialize = ProtobufSerializer(cart, client, {"use.deprecated.format": False})
    values = []
    for number in range(COUNT):
        made = cart(id=number - 2**60, big=2**64 - 1 - number, ratio=0.5, raw=bytes([number % 256]), open=number % 2)
        made.at.seconds, made.at.nanos = 1_700_000_000 + number, number * 1000
        for age in range(number % 3):
            made.woods.add(name="oak", age=-age)
        values.append(framed(serialize, made))
    return Produced(values, reading(ProtobufDeserializer(cart, {"use.deprecated.format": False}, client)))


def protobuf_nested(client: Any) -> Produced:
    _, line = protobuf_classes()
    serialize = ProtobufSerializer(line, client, {"use.deprecated.format": False})
    values = [framed(serialize, line(id=number, what=f"line {number}")) for number in range(COUNT)]
    return Produced(values, reading(ProtobufDeserializer(line, {"use.deprecated.format": False}, client)))


KINDS: dict[str, Callable[[Any], Produced]] = {
    "Avro": avro, "JSON Schema": json_schema, "Protobuf": protobuf, "Protobuf, a nested message": protobuf_nested,
}  # fmt: skip

# --- the comparison


def plain(tree: Any) -> Any:
    """Either side's values in one form: without nulls, times and other objects as text, bytes as hexadecimal digits."""
    if hasattr(tree, "DESCRIPTOR"):
        tree = of_message(tree)
    if isinstance(tree, dict):
        return {name: plain(item) for name, item in tree.items() if item is not None}
    if isinstance(tree, list):
        items = dict(tree) if tree and all(isinstance(item, tuple) for item in tree) else None
        return plain(items) if items is not None else [plain(item) for item in tree]
    if isinstance(tree, datetime):
        return tree.astimezone(UTC).isoformat()
    if isinstance(tree, bytes | bytearray):
        return bytes(tree).hex()
    is_wide = isinstance(tree, int) and tree >= 2**63  # a decimal here
    return str(tree) if is_wide or isinstance(tree, Decimal | UUID | date) else tree


def of_message(message: Any) -> dict[str, Any]:
    """A message of Protobuf, with the fields that have their default."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is None:
            found[field.name] = value
        elif field.is_repeated:
            found[field.name] = [of_message(item) for item in value]
        elif message.HasField(field.name):
            is_time = field.message_type.full_name == "google.protobuf.Timestamp"
            found[field.name] = value.ToDatetime(UTC) if is_time else of_message(value)
    return found


def differences(got: list[Any], expected: list[Any]) -> str:
    for number, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one != other:
            return f"value {number} is {one}, should be {other}"
    return "" if len(got) == len(expected) else f"{len(got)} values, should be {len(expected)}"


def from_file(path: Path, url: str) -> list[Any]:
    with duramen.open(path) as log:
        return [plain(record.value) for record in log.scan(decode="confluent", registry=url)]


def from_command_line(path: Path, url: str) -> list[Any]:
    command = [sys.executable, "-m", "duramen", "cat", str(path), "--decode", "confluent", "--registry", url, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


def as_shown(tree: Any) -> Any:
    """What the command line prints for a value."""
    return json.loads(duramen.values.decoded_json(tree))


def from_spark(spark: Any, path: Path, url: str) -> list[Any]:
    options = {"decode": "confluent", "registry": url}
    rows = spark.read.format("duramen").options(**options).load(str(path)).orderBy("offset").collect()
    return [plain(row.value.asDict(recursive=True)) for row in rows]


def from_stream(spark: Any, path: Path, url: str) -> list[Any]:
    frame = spark.readStream.format("duramen").options(decode="confluent", registry=url).load(str(path))
    query = frame.writeStream.format("memory").queryName("decoded").trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.sql("SELECT value FROM decoded ORDER BY offset").collect()
    return [plain(row.value.asDict(recursive=True)) for row in rows]


def checks(root: Path, spark: Any) -> Checks:
    registry = Registry()
    logs: dict[Path, list[Any]] = {}
    with serving(registry) as url:
        client = SchemaRegistryClient({"url": url})
        for kind, produce in KINDS.items():
            produced = produce(client)
            for name in FORMATS:
                path = root / f"{kind}-{name}"
                with duramen.open(path, "a", format=name, segment_max_bytes=8 << 10) as log:
                    log.append_batch(produced.values)
                    raw = [record.value or b"" for record in log.scan()]
                expected = logs[path] = [plain(produced.deserialize(value)) for value in raw]
                yield from of_one(f"{kind}, {name}", path, url, expected, spark)
        yield from keys(root, url, client, spark)
        yield f"the registry was asked {len(registry.asked)} times", ""
    for path, expected in logs.items():
        yield f"{path.name}: from the file, without the registry", differences(from_file(path, url), expected)


def keys(root: Path, url: str, client: Any, spark: Any) -> Checks:
    """Keys of a single type, as most topics have them."""
    for schema, wanted in (("string", [f"grün {number}" for number in range(COUNT)]), ("long", list(range(-9, 9)))):
        serialize = AvroSerializer(client, json.dumps(schema))
        raw = [bytes(serialize(key, SerializationContext(schema, MessageField.KEY))) for key in wanted]
        path = root / f"keys, {schema}"
        with duramen.open(path, "a", format="kafka") as log:
            log.append_batch([(key, b"value") for key in raw])
            got = [record.key for record in log.scan(decode_key="confluent", registry=url)]
        yield f"{len(raw)} keys of the type {schema} from the file", differences(got, wanted)
        frame = spark.read.format("duramen").options(decodeKey="confluent", registry=url).load(str(path))
        found = [row.key for row in frame.orderBy("offset").collect()]
        yield f"keys of the type {schema} in Spark", differences(found, wanted)


def of_one(what: str, path: Path, url: str, expected: list[Any], spark: Any) -> Checks:
    yield f"{what}: {len(expected)} values from the file", differences(from_file(path, url), expected)
    with duramen.open(path) as log:
        shown = [as_shown(record.value) for record in log.scan(decode="confluent", registry=url)]
    yield f"{what}: on the command line", differences(from_command_line(path, url), shown)
    yield f"{what}: in Spark", differences(from_spark(spark, path, url), expected)
    yield f"{what}: in a stream of Spark", differences(from_stream(spark, path, url), expected)


def main() -> int:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duramen-confluent-"))).resolve()
        spark = stack.enter_context(session("local[2]", {"spark.ui.enabled": "false"}))
        return tell(checks(root, spark))


if __name__ == "__main__":
    sys.exit(main())

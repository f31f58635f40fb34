"""Confluent's own serializers: what they write, read from files, on the command line and by URL."""

from __future__ import annotations

import json
import os
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import duramen
from duramen import MalformedValue, StorageError, UsageError
from duramen.spark import parse_options
from duramen.values import registry as registry_module
from tests.cli.running import Run
from tests.values import protobufs

AVRO = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
AVRO_LATER = {**AVRO, "fields": [*AVRO["fields"], {"name": "wood", "type": "string", "default": "oak"}]}
JSON = {
    "title": "order", "type": "object",
    "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
}  # fmt: skip


class Produced:
    """Values of one serializer, and the schemas that it registered."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.client = SchemaRegistryClient.new_client({"url": "mock://"})
        self.ids: list[int] = []
        self.values = getattr(self, kind)()

    def _write(self, serializer: Any, tree: Any) -> bytes:
        value = serializer(tree, SerializationContext("orders", MessageField.VALUE))
        self.ids.append(int.from_bytes(value[1:5], "big"))
        return bytes(value)

    def avro(self) -> list[bytes]:
        old, new = (AvroSerializer(self.client, json.dumps(schema)) for schema in (AVRO, AVRO_LATER))
        trees = [(old, {"id": 1}), (new, {"id": 2, "wood": "ash"}), (old, {"id": 3})]
        return [self._write(serializer, tree) for serializer, tree in trees]

    def json(self) -> list[bytes]:
        serializer = JSONSerializer(json.dumps(JSON), self.client)
        return [self._write(serializer, {"id": number, "tags": ["a"]}) for number in (1, 2, 3)]

    def protobuf(self) -> list[bytes]:
        serializer = ProtobufSerializer(protobufs.order_class(), self.client, {"use.deprecated.format": False})
        return [self._write(serializer, protobufs.order(number)) for number in (1, 2, 3)]

    def log(self, path: Path) -> str:
        with duramen.open(path, "a", format="kafka") as log:
            log.append_batch([(b"key", value) for value in self.values])
        return str(path)

    def directory(self, path: Path) -> str:
        path.mkdir()
        for number in set(self.ids):
            if self.kind == "protobuf":
                (path / f"{number}.desc").write_bytes(protobufs.descriptor_set())
            else:
                suffix = {"avro": "avsc", "json": "json"}[self.kind]
                (path / f"{number}.{suffix}").write_text(self.client.get_schema(number).schema_str)
        return str(path)


KINDS = ("avro", "json", "protobuf")


@pytest.fixture(scope="module")
def produced() -> dict[str, Produced]:
    return {kind: Produced(kind) for kind in KINDS}


def ids_of(values: list[Any]) -> list[int]:
    return [value["id"] for value in values]


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_through_file_and_command_line(
    kind: str, produced: dict[str, Produced], tmp_path: Path, call: Run
) -> None:
    path, registry = produced[kind].log(tmp_path / "log"), produced[kind].directory(tmp_path / "schemas")
    with duramen.open(path) as log:
        values = [record.value for record in log.scan(decode="confluent", registry=registry)]
        assert ids_of(values) == [1, 2, 3]
        assert log.read(1, decode="confluent", registry=registry).value["id"] == 2
    found = call("cat", path, "--decode", "confluent", "--registry", registry, "--json").json_lines
    assert ids_of([line["value"] for line in found]) == [1, 2, 3]
    if kind == "avro":
        assert [value["wood"] for value in values] == ["oak", "ash", "oak"]
    if kind == "protobuf":
        assert values[0]["part"] == {"n": 7}
        assert values[0]["counts"] == {"x": 3}


@pytest.mark.parametrize(("schema", "keys"), [("string", ["k1", "grün"]), ("long", [-7, 2**62])])
def test_keys_that_are_no_records(schema: str, keys: list[Any], tmp_path: Path, call: Run) -> None:
    """As `AvroSerializer` writes them with the schema ``"string"``."""
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    serialize = AvroSerializer(client, json.dumps(schema))
    raw = [bytes(serialize(key, SerializationContext("orders", MessageField.KEY))) for key in keys]
    (tmp_path / "schemas").mkdir()
    (tmp_path / f"schemas/{int.from_bytes(raw[0][1:5], 'big')}.avsc").write_text(json.dumps(schema))
    path, options = str(tmp_path / "log"), {"decode_key": "confluent", "registry": str(tmp_path / "schemas")}
    with duramen.open(path, "a", format="kafka") as log:
        log.append_batch([(key, b"value") for key in [*raw, None, raw[0] + b"x"]])
        found = [each.key for each in log.scan(**options, on_malformed="raw")]
        assert log.table(**options, on_malformed="null")["key"].to_pylist() == [*keys, None, None]
    assert found[:3] == [*keys, None]
    assert "left over" in found[3].reason
    command = ["--decode-key", "confluent", "--registry", options["registry"], "--on-malformed", "null", "--json"]
    assert [line["key"] for line in call("cat", path, *command).json_lines] == [*keys, None, None]


def test_the_schema_that_the_reader_gives_decides(produced: dict[str, Produced], tmp_path: Path) -> None:
    path, registry = produced["avro"].log(tmp_path / "log"), produced["avro"].directory(tmp_path / "schemas")
    options: Any = {"decode": "confluent", "registry": registry}
    with duramen.open(path) as log:
        assert log.read(1, **options, value_schema=AVRO).value == {"id": 2}
        wider = {**AVRO, "fields": [*AVRO["fields"], {"name": "n", "type": "int"}]}
        raw = log.read(0, **options, value_schema=wider, on_malformed="raw").value
        assert isinstance(raw, MalformedValue)
        assert "reader's schema" in raw.reason


def test_frames_that_are_none(produced: dict[str, Produced], tmp_path: Path) -> None:
    registry = produced["avro"].directory(tmp_path / "schemas")
    good = produced["avro"].values[0]
    bad = [b"", b"\0", b"\x01" + good[1:], b"\0\0\0\xff\xff" + good[5:], good[:5], good + b"x"]
    with duramen.open(tmp_path / "log", "a") as log:
        log.append_batch([good, *bad])
        values = [record.value for record in log.scan(decode="confluent", registry=registry, on_malformed="raw")]
        assert values[0]["id"] == 1
        assert all(isinstance(value, MalformedValue) for value in values[1:])
        assert "65535" in values[4].reason
        with pytest.raises(UsageError, match="need a registry"):
            log.scan(decode="confluent")
        with pytest.raises(UsageError, match="neither a directory nor a URL"):
            list(log.scan(decode="confluent", registry=str(tmp_path / "nowhere")))


# --- by URL


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((path, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        found = self.server.answers.get(path)  # type: ignore[attr-defined]
        body = json.dumps(found or {"error_code": 40403}).encode() if not isinstance(found, bytes) else found
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def registry(produced: dict[str, Produced]) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.asked, server.answers = [], {}
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    server.url = f"http://user:secret@127.0.0.1:{server.server_address[1]}"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_registry_by_url_is_asked_once(
    kind: str, produced: dict[str, Produced], registry: Any, tmp_path: Path
) -> None:
    one = produced[kind]
    for number in one.ids:
        text = one.client.get_schema(number).schema_str
        answer: dict[str, Any] = {"schema": text, "schemaType": kind.upper()}
        if kind == "protobuf":
            answer["schema"] = b64encode(protobufs.file_of().SerializeToString()).decode()
        registry.answers[f"/schemas/ids/{number}"] = answer
    path = one.log(tmp_path / "log")
    for _ in range(2):
        with duramen.open(path) as log:
            assert ids_of([each.value for each in log.scan(decode="confluent", registry=registry.url)]) == [1, 2, 3]
    assert len(registry.asked) == len(set(one.ids))
    assert registry.asked[0][1] == "Basic dXNlcjpzZWNyZXQ="
    kept = os.listdir(tmp_path / "log/.duramen/schemas")
    assert len(kept) == len(set(one.ids))
    assert not any("secret" in name for name in kept)
    assert duramen.verify(path).ok


def test_a_kept_schema_that_is_damaged_is_fetched_again(
    produced: dict[str, Produced], registry: Any, tmp_path: Path
) -> None:
    one = produced["json"]
    registry.answers[f"/schemas/ids/{one.ids[0]}"] = {"schema": json.dumps(JSON), "schemaType": "JSON"}
    path = one.log(tmp_path / "log")
    for _ in range(2):
        with duramen.open(path) as log:
            assert log.read(0, decode="confluent", registry=registry.url).value["id"] == 1
        (kept,) = (tmp_path / "log/.duramen/schemas").iterdir()
        kept.write_bytes(kept.read_bytes().replace(b"integer", b"integet"))
    assert len(registry.asked) == 2


def test_references_are_fetched(registry: Any, tmp_path: Path) -> None:
    wood = {"type": "enum", "name": "wood", "namespace": "shop", "symbols": ["oak"]}
    main = {"type": "record", "name": "o", "fields": [{"name": "w", "type": "shop.wood"}]}
    registry.answers["/schemas/ids/7"] = {
        "schema": json.dumps(main), "references": [{"name": "shop.wood", "subject": "wood/s", "version": 2}],
    }  # fmt: skip
    registry.answers["/subjects/wood%2Fs/versions/2"] = {"schema": json.dumps(wood)}
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"\0\0\0\0\x07\0")
        assert log.read(0, decode="confluent", registry=registry.url).value == {"w": "oak"}


def test_references_of_json_schemas(registry: Any, tmp_path: Path) -> None:
    """By the name of the reference, by one relative to it, and to a place within; whatever the schema's ``$id``."""
    part = {"$id": "own", "definitions": {"n": {"type": "integer"}}, "type": "object",
            "properties": {"n": {"$ref": "#/definitions/n"}, "wood": {"$ref": "wood.json"}}}  # fmt: skip
    order = {"$id": "http://shop/order.json", "type": "object", "properties": {
        "part": {"$ref": "part.json"}, "n": {"$ref": "http://shop/part.json#/definitions/n"}}}  # fmt: skip
    registry.answers["/schemas/ids/7"] = {
        "schema": json.dumps(order), "schemaType": "JSON",
        "references": [{"name": "http://shop/part.json", "subject": "part", "version": 1}],
    }  # fmt: skip
    registry.answers["/subjects/part/versions/1"] = {
        "schema": json.dumps(part), "schemaType": "JSON",
        "references": [{"name": "wood.json", "subject": "wood", "version": 3}],
    }  # fmt: skip
    registry.answers["/subjects/wood/versions/3"] = {"schema": '{"type": "string"}', "schemaType": "JSON"}
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b'\0\0\0\0\x07{"part": {"n": 1, "wood": "oak"}, "n": 2}')
        for _ in range(2):
            found = log.read(0, decode="confluent", registry=registry.url).value
            assert found == {"part": {"n": 1, "wood": "oak"}, "n": 2}
    assert len(registry.asked) == 3
    registry.answers["/schemas/ids/8"] = {"schema": json.dumps(order), "schemaType": "JSON"}
    with duramen.open(tmp_path / "other", "a") as log:
        log.append(b"\0\0\0\0\x08{}")
        with pytest.raises(UsageError, match="leads out of the schema"):
            log.read(0, decode="confluent", registry=registry.url)


NO_VERSION = b'{"schema": "5", "references": [{"subject": "s", "version": "x"}]}'


@pytest.mark.parametrize(
    "answer", [b"<html>", b"[]", b"{}", b'{"schema": 5, "references": 7}', NO_VERSION, b"[" * 100_000]
)
def test_a_registry_that_returns_nonsense(registry: Any, tmp_path: Path, answer: bytes) -> None:
    registry.answers["/schemas/ids/7"] = answer
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"\0\0\0\0\x07\0")
        with pytest.raises(duramen.DuramenError) as caught:
            log.read(0, decode="confluent", registry=registry.url)
    assert "secret" not in str(caught.value)


def test_an_id_that_the_registry_lacks_is_asked_for_once(registry: Any, tmp_path: Path) -> None:
    registry.answers["/schemas/ids/7"] = {"schema": json.dumps(AVRO)}
    with duramen.open(tmp_path / "log", "a", segment_max_bytes=200) as log:
        log.append_batch([b"\0\0\0\0\x07\2", b"\0\0\0\0\x09\2"] * 20)
        values = [each.value for each in log.scan(decode="confluent", registry=registry.url, on_malformed="raw")]
    assert values[::2] == [{"id": 1}] * 20
    assert {value.reason for value in values[1::2]} == {"the registry does not know the schema 9"}
    assert len(registry.asked) == 2


def test_a_schema_that_appears_and_one_that_is_deleted(registry: Any, tmp_path: Path) -> None:
    """A deleted schema is kept beside the log, and an unknown one is asked for again by the next read."""
    registry.answers["/schemas/ids/7"] = {"schema": json.dumps(AVRO)}
    with duramen.open(tmp_path / "log", "a") as log:
        log.append_batch([b"\0\0\0\0\x07\2", b"\0\0\0\0\x09\4\0"])
        options: Any = {"decode": "confluent", "registry": registry.url, "on_malformed": "null"}
        assert [each.value for each in log.scan(**options)] == [{"id": 1}, None]
        registry.answers["/schemas/ids/9"] = {"schema": json.dumps(AVRO_LATER)}
        del registry.answers["/schemas/ids/7"]
        assert [each.value for each in log.scan(**options)] == [{"id": 1, "wood": "oak"}, {"id": 2, "wood": ""}]


def test_a_registry_that_sends_byte_by_byte(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No timeout of a socket bounds that."""
    monkeypatch.setattr(registry_module, "DEADLINE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, duramen.open(tmp_path / "log", "a") as log:
        log.append(b"\0\0\0\0\x07\0")
        url = f"http://user:secret@127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(StorageError, match="no whole answer") as caught:
            log.read(0, decode="confluent", registry=url)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b""])
def test_a_registry_that_speaks_no_http(answer: bytes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, duramen.open(tmp_path / "log", "a") as log:
        log.append(b"\0\0\0\0\x07\0")

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(StorageError, match="registry"):
            log.read(0, decode="confluent", registry=f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_addresses_that_are_none(tmp_path: Path) -> None:
    for address in ("http://[::1", "https://[x"):
        with pytest.raises(UsageError, match="no valid address"):
            duramen.decoder("confluent", registry=address)
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"\0\0\0\0\x07\0")
        for address in ("http://", "http://a b", "http://127.0.0.1:port", "http://127.0.0.1:99999"):
            with pytest.raises(StorageError):
                log.read(0, decode="confluent", registry=address)
    assert "secret" not in repr(duramen.decoder("confluent", registry="http://user:secret@host"))


# --- schemas that cannot be used

NODE = {"type": "record", "name": "order", "fields": [{"name": "next", "type": ["null", "order"]}]}
ENDLESS = {"type": "record", "name": "order", "fields": [{"name": "x", "type": {"type": "array", "items": "null"}}]}
DROPPED = {**AVRO, "fields": [*AVRO["fields"], {"name": "x", "type": ["int", "string", "null"]}]}


def test_versions_that_no_bound_holds(tmp_path: Path) -> None:
    """A recursive type takes the stack of the process, an array of nothing takes forever."""
    (tmp_path / "schemas").mkdir()
    schemas = [NODE, ENDLESS, {"type": "record", "name": "order"}, DROPPED, AVRO_LATER]
    for number, schema in enumerate(schemas, 1):
        (tmp_path / f"schemas/{number}.avsc").write_text(json.dumps(schema))
    (tmp_path / "schemas/6.avsc").mkdir()
    os.symlink("/dev/zero", tmp_path / "schemas/7.avsc")
    values = [
        b"\2" * 1_000_000 + b"\0",
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\0",
        b"\2",
        b"\4\2\2a",
        b"\6\0",
        b"",
        b"",
    ]
    with duramen.open(tmp_path / "log", "a") as log:
        log.append_batch([b"\0\0\0\0" + bytes([number]) + value for number, value in enumerate(values, 1)])
        options: Any = {"decode": "confluent", "registry": str(tmp_path / "schemas"), "on_malformed": "raw"}
        found = [each.value for each in log.scan(**options)]
    assert found[3:5] == [{"id": 2, "wood": "oak"}, {"id": 3, "wood": ""}]
    reasons = [each.reason for each in [*found[:3], *found[5:]]]
    for reason, word in zip(reasons, ["recursive", "no bytes", "cannot be used", "no file", "no file"], strict=True):
        assert word in reason
    assert all("schema" in reason for reason in reasons)


def test_a_registry_that_cannot_be_reached(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"\0\0\0\0\x07\0")
        with pytest.raises(StorageError, match="cannot be reached"):
            log.read(0, decode="confluent", registry="http://user:secret@127.0.0.1:1")


def test_the_option_in_spark_needs_its_registry() -> None:
    with pytest.raises(UsageError, match="need a registry"):
        parse_options({"path": "/log", "decode": "confluent"}, streaming=False)

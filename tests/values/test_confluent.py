"""Confluent's own serializers: what they write, read from files, on the command line and by URL."""

from __future__ import annotations

import json
import os
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
    thread = threading.Thread(target=server.serve_forever)
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


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"{}", b'{"schema": 5, "references": 7}', b"[" * 100_000])
def test_a_registry_that_answers_nonsense(registry: Any, tmp_path: Path, answer: bytes) -> None:
    registry.answers["/schemas/ids/7"] = answer
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"\0\0\0\0\x07\0")
        with pytest.raises(duramen.DuramenError) as caught:
            log.read(0, decode="confluent", registry=registry.url)
    assert "secret" not in str(caught.value)


def test_a_registry_that_cannot_be_reached(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"\0\0\0\0\x07\0")
        with pytest.raises(StorageError, match="cannot be reached"):
            log.read(0, decode="confluent", registry="http://user:secret@127.0.0.1:1")


def test_the_option_in_spark_needs_its_registry() -> None:
    with pytest.raises(UsageError, match="need a registry"):
        parse_options({"path": "/log", "decode": "confluent"}, streaming=False)

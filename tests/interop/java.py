"""RabbitMQ's own Java client, which brings decoders of all four compressions; used where Java and Maven are there."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.interop.client import Message

DEPENDENCIES = {
    "com.rabbitmq:stream-client": "1.11.0",
    "org.xerial.snappy:snappy-java": "1.1.10.7",
    "org.lz4:lz4-java": "1.8.0",
    "com.github.luben:zstd-jni": "1.5.7-4",
    "org.slf4j:slf4j-nop": "1.7.36",
}
SOURCE = Path(__file__).with_name("StreamClient.java")


class JavaClient:
    """Calls to the broker on ``port``, one JVM each."""

    def __init__(self, classpath: str, port: int) -> None:
        self._command = ["java", "-cp", classpath]
        self._port = str(port)

    @classmethod
    def install(cls, path: Path, port: int) -> JavaClient | None:
        """Fetch the jars and compile; None where there is no Java, or no Maven."""
        if not all(map(shutil.which, ("java", "javac", "mvn"))):
            return None
        path.mkdir()
        dependencies = "".join(
            "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
                *name.split(":"), version
            )
            for name, version in DEPENDENCIES.items()
        )
        (path / "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>interop</groupId><artifactId>interop</artifactId>"
            f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
        )
        command = ["mvn", "-q", "-B", "-l", "maven.log", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=path, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        classpath = f"{path}/lib/*:{path}"
        subprocess.run(["javac", "-cp", classpath, "-d", str(path), str(SOURCE)], check=True)
        return cls(classpath, port)

    def _run(self, *arguments: str, given: str = "") -> str:
        command = [*self._command, SOURCE.stem, arguments[0], self._port, *arguments[1:]]
        return subprocess.run(command, check=True, capture_output=True, text=True, input=given, timeout=60).stdout

    def consume(self, stream: str, count: int, *filters: str) -> list[Message]:
        """Everything from the first record on, or what may have a filter value. The client hands out bodies only:
        ``raw`` is empty."""
        lines = (line.split(" ") for line in self._run("consume", stream, str(count), *filters).splitlines())
        return [Message(int(offset), int(time), b"", base64.b64decode(body)) for offset, time, body in lines]

    def publish(self, stream: str, payloads: Sequence[bytes], compression: str, sub_batch_records: int) -> int:
        """Publish in sub-batches; answers how many were confirmed."""
        lines = "".join(base64.b64encode(payload).decode() + "\n" for payload in payloads)
        return int(self._run("publish", stream, compression, str(sub_batch_records), given=lines))

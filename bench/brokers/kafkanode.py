"""One Kafka node from the broker's jars: broker and controller in one JVM, on loopback, in a scratch directory.

`Node` is a context manager; leaving it ends the JVM that it started. In between, `stop` and `start` restart the node on
the same files.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.brokers import install

VERSION = "4.3.1"
JARS = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
HOST = "127.0.0.1"
QUIET = {"log_level": 2}
"""For clients: that a connection ends when the node does is no news."""
START_TIMEOUT_S, STOP_TIMEOUT_S, CALL_TIMEOUT_S = 180, 120, 60
HEAP = "-Xmx1g"
"""As Kafka's own start script has it."""

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


class Node:
    """Starts on entering, with an empty data directory under ``root``. ``properties`` are lines of configuration."""

    def __init__(self, root: Path, properties: str = "") -> None:
        self.root = root
        self.data = root / "data"
        self.log = root / "console.txt"
        """What the node said since its last start."""
        port, controller_port = _free_ports(2)
        self.address = f"{HOST}:{port}"
        self._properties = PROPERTIES.format(
            host=HOST, port=port, controller_port=controller_port, data=self.data
        ) + properties  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True)
        self._conf.write_text(self._properties, encoding="utf-8")
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatting = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config", str(self._conf)]
        install.run([*self._command, *formatting], "kafka.tools.StorageTool", START_TIMEOUT_S)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def _conf(self) -> Path:
        return self.root / "server.properties"

    @cached_property
    def _command(self) -> list[str]:
        jars = install.jars("kafka", JARS)
        return [install.java(), HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]

    @cached_property
    def _admin(self) -> Any:  # kept, because its answers die with it
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, **QUIET})

    def start(self) -> None:
        with self.log.open("wb") as console:
            self._process = subprocess.Popen(
                [*self._command, "kafka.Kafka", str(self._conf)], cwd=self.root, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        """Until the port takes connections, which is when the broker serves."""
        assert self._process is not None
        until = time.monotonic() + START_TIMEOUT_S
        host, port = self.address.split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    said = self.log.read_text(errors="replace").strip().splitlines()
                    raise install.NotRun(f"Kafka did not start: {said[-1][:200] if said else 'no word'}") from None
                time.sleep(0.1)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the session that it leads, and nothing else
            process.wait(10)

    def kill(self) -> None:
        """End the node as a crash does."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        from confluent_kafka.admin import NewTopic

        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        for future in self._admin.create_topics([topic]).values():
            future.result(CALL_TIMEOUT_S)

    def delete_topic(self, name: str) -> None:
        for future in self._admin.delete_topics([name]).values():
            future.result(CALL_TIMEOUT_S)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()

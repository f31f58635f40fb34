"""A RabbitMQ broker of our own: Debian's package, started by hand in a scratch directory, on loopback only.

Needs no systemd and touches neither the system's broker nor its epmd: node name, cookie, ports, data and log are its
own. It runs as whoever calls, so that Duramen and the broker may write each other's files. `Broker` is a context
manager; leaving it ends every process that it started.

``system`` is the root directory of another release of the distribution, as `debootstrap` makes it: its RabbitMQ runs
there (`chroot`, which needs root), in a mount namespace of its own that shows the scratch directory under its path.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Not the wrapper in /usr/sbin, which changes to the user rabbitmq and logs into the system's directories."""

HOST = "127.0.0.1"
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60

CONF = """\
listeners.tcp.1 = {host}:{amqp_port}
stream.listeners.tcp.1 = {host}:{stream_port}
stream.advertised_host = {host}
stream.advertised_port = {stream_port}
log.file.level = debug
log.console = false
"""


ENTER = """set -e
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/tmp"
touch "$1/etc/hosts"
mount --bind /etc/hosts "$1/etc/hosts"
mkdir -p "$1$2"
mount --bind "$2" "$1$2"
exec chroot "$1" "$3"
"""
"""Shell words: show the directory $2 inside the system $1, and become its program $3."""


def inside(system: Path | None, path: Path) -> Path:
    """Where a path of that system lies."""
    return path if system is None else system / path.relative_to("/")


def install_package(system: Path | None = None) -> None:
    """Install the server from the distribution's packages, if it is not there."""
    if inside(system, SERVER).exists():
        return
    if system is not None:
        raise RuntimeError(f"there is no RabbitMQ in {system}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "rabbitmq-server"]):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def package_versions(system: Path | None = None) -> dict[str, str]:
    """RabbitMQ and the Osiris inside it, as their directories say."""
    plugins = sorted(inside(system, Path("/usr/lib/rabbitmq/lib")).glob("rabbitmq_server-*/plugins/osiris-*"))
    if not plugins:
        return {}
    return {
        "RabbitMQ": plugins[-1].parents[1].name.removeprefix("rabbitmq_server-"),
        "Osiris": plugins[-1].name.removeprefix("osiris-").removesuffix(".ez"),
    }


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


class Broker:
    """One node. Its data outlives `stop`; `start` goes on with it."""

    def __init__(self, root: Path, system: Path | None = None) -> None:
        self.root = root
        self._command = [SERVER]
        if system is not None:
            self._command = ["unshare", "--mount", "sh", "-c", ENTER, "sh", system, root, SERVER]
        self.logs = root / "log"
        self.data = root / "mnesia"
        self.amqp_port, self.stream_port, dist_port, self._epmd_port = _free_ports(4)
        for directory in (self.logs, self.data):
            directory.mkdir(parents=True)
        (root / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        (root / "env.conf").write_text("")
        (root / "rabbitmq.conf").write_text(
            CONF.format(host=HOST, amqp_port=self.amqp_port, stream_port=self.stream_port)
        )
        self._environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(root),  # here Erlang makes its cookie
            "RABBITMQ_NODENAME": f"duramen-{self.amqp_port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.amqp_port),
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.logs),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(root / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(root / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(root / "env.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self._epmd_port),
        }
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._log_bytes_at_start = 0

    def __enter__(self) -> Self:
        epmd = shutil.which("epmd")
        if epmd is None:
            raise RuntimeError("there is no epmd: is Erlang installed?")
        command = [epmd, "-port", str(self._epmd_port), "-address", HOST]
        self._epmd = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            if self._epmd is not None:
                self._epmd.terminate()
                self._epmd.wait(10)

    @property
    def is_running(self) -> bool:
        return self._server is not None

    def start(self) -> None:
        """Start, and return when clients can connect."""
        if self._server is not None:
            return
        self._log_bytes_at_start = len(self._log())
        with open(self.logs / "console.txt", "ab") as console:
            self._server = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                cwd=self.root, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + START_TIMEOUT_S
        while "Server startup complete" not in self.log_since_start():
            if self._server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the broker did not start: see {self.logs}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop as a service manager would: SIGTERM, and wait until it has closed its files."""
        server, self._server = self._server, None
        if server is None:
            return
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(server.pid, signal.SIGKILL)  # whatever of its session is left; normally nothing
        except ProcessLookupError:
            pass
        server.wait(10)

    def stream_directory(self, stream: str) -> Path:
        """Where the segments of a stream lie: the virtual host ``/`` as an underscore, the name, and a time."""
        found = sorted(self.data.glob(f"*/stream/__{stream}_*"))
        if len(found) != 1:
            raise RuntimeError(f"{len(found)} directories for the stream {stream!r}: {found}")
        return found[0]

    def _log(self) -> str:
        files = sorted(self.logs.glob("duramen-*.log"))
        return "".join(path.read_text(errors="replace") for path in files)

    def log_since_start(self) -> str:
        """What the broker has logged since the last `start`."""
        return self._log()[self._log_bytes_at_start :]

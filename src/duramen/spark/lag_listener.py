"""The lag of streaming queries for Prometheus: a listener that keeps the last report of every query of a session.

The source reports the lag with its latest offset (`source.stream`); Spark carries it in `StreamingQueryProgress`. The
listener asks no log. With a port it serves ``/metrics``; without one, `text` is what a program exports in its own way.
A Python listener costs Spark about 80 ms of CPU per batch, so it is optional.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from duramen import metrics
from duramen.metrics import CONTENT_TYPE, Sample
from duramen.spark.source import LAG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class LagListener(StreamingQueryListener):
    """Lag of the queries that read logs, by query and log. ``query`` is the query's name, or its id."""

    def __init__(self) -> None:
        self._lags: dict[str, tuple[str, dict[str, Any]]] = {}
        self._guard = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    @classmethod
    def start(cls, spark: SparkSession, port: int, host: str = "127.0.0.1") -> LagListener:
        """Add a listener to the session, and serve its metrics; port 0 takes a free one (`port`)."""
        listener = cls()
        listener._server = ThreadingHTTPServer((host, port), _handler(listener))
        threading.Thread(target=listener._server.serve_forever, name="duramen lag", daemon=True).start()
        spark.streams.addListener(listener)
        return listener

    @property
    def port(self) -> int | None:
        return None if self._server is None else int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving. The listener stays with the session until ``spark.streams.removeListener``."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def text(self) -> str:
        """The last lags as Prometheus text."""
        with self._guard:
            known = list(self._lags.values())
        return metrics.exposition(sample for name, lag in known for sample in _samples(name, lag))

    # --- what Spark calls

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        return

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self.keep(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        return

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._guard:
            self._lags.pop(str(event.id), None)

    def keep(self, progress: Mapping[str, Any]) -> None:
        """Take the lag from a progress report, given as the tree of its JSON."""
        parts: dict[str, Any] = {}
        for source in progress["sources"]:
            parts.update(_reported(source.get("latestOffset")).get("partitions", {}))
        if parts:
            with self._guard:
                self._lags[str(progress["id"])] = str(progress.get("name") or progress["id"]), parts


def _reported(latest: Any) -> dict[str, Any]:
    """The lag in a reported offset; empty for sources of other kinds."""
    tree = json.loads(latest) if isinstance(latest, str) else latest
    found = tree.get(LAG) if isinstance(tree, dict) else None
    return found if isinstance(found, dict) else {}


def _samples(query: str, parts: Mapping[str, Any]) -> Iterator[Sample]:
    for log, lag in parts.items():
        labels = (("query", query), ("log", log))
        yield Sample("duramen_spark_lag_records", lag["records"], labels)
        yield Sample("duramen_spark_lag_bytes", lag["bytes"], labels)
        if lag["oldest"] is not None:
            seconds = datetime.fromisoformat(lag["oldest"]).timestamp()
            yield Sample("duramen_spark_oldest_timestamp_seconds", seconds, labels)


def _handler(listener: LagListener) -> type[BaseHTTPRequestHandler]:
    class LagHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path.partition("?")[0] == "/metrics"
            body = listener.text().encode() if is_known else b"only /metrics is here\n"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", CONTENT_TYPE if is_known else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: scrapes are not worth a line each."""

    return LagHandler

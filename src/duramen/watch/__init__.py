"""Watch logs: their rates and lags over time, and their records. Reads only; never writes to a log.

- `WatchedPaths` finds the logs below some paths.
- `Observer` samples one log and keeps a history: size, rates, lag of its consumers.
- `Server` shows the logs on a local web page and their metrics to Prometheus; `duramen top` uses observers directly.

Behind `Server`, `api` maps requests to functions, `browser` reads records, and `watcher` runs observers and checks.
"""

from __future__ import annotations

from duramen.watch.discovery import WatchedPath, WatchedPaths
from duramen.watch.observer import Observation, Observer, Rates, as_json
from duramen.watch.server import Server

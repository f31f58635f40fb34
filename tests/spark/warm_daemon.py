"""Spark's daemon of Python workers, with everything imported that a worker of Duramen needs.

Spark runs one daemon for each kind of worker, and the daemon forks a process for each worker, and another one after
each error. Each would import pyspark, pyarrow and duramen again: 1 to 2 s, where most
tests take 0.2 s. Spark's own daemon does not do that before it forks because a library might start threads; these do
not until they are used. Sessions that tests start in other processes use Spark's own.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401
import pyspark.daemon
import pyspark.sql.streaming.python_streaming_source_runner
import pyspark.sql.worker.create_data_source
import pyspark.worker  # noqa: F401

import duramen.spark.sink
import duramen.spark.source.stream  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    pyspark.daemon.manager()

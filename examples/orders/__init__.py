"""Orders: a pipeline as one would run it, killed at random, and its results compared with duckdb.

    python -m examples.orders --gb 0.2 --kills 5

Logs of several formats hold orders as JSON: 100 bytes to 2 KB, out of order by up to half a minute, one in a hundred
corrupt. A streaming job parses them, waits for late ones (watermark), joins them with a Parquet table of products, and
sums them up by minute and category. Each result goes to a Delta table *and* to a topic, exactly once; corrupt records
go to a topic of rejects. The driver is killed again and again, and restarted each time.

- `generate` writes logs, products, and the truth (a Parquet file of the valid orders that duckdb reads).
- `job` is the pipeline; ``python -m examples.orders.job DIRECTORY`` runs it alone.
- `check` compares Delta, topic and rejects with what duckdb makes of the truth.
- `run` starts the job, kills it, starts it again, and measures the memory of its processes.

Needs ``pip install duramen[spark,lake] duckdb``.
"""

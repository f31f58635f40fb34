"""Jobs: heavy work on logs, as functions that take a SparkSession. The same work as in-process, on more machines.

>>> from duramen.spark import jobs
>>> jobs.verify.__module__
'duramen.spark.jobs.verify'
"""

from duramen.spark.jobs.verify import verify, verify_rows

__all__ = ["verify", "verify_rows"]

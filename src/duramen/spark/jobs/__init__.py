"""Jobs: heavy work on logs, as functions that take a SparkSession. The same work as in-process, on more machines.

>>> from duramen.spark import jobs
>>> jobs.verify.__module__
'duramen.spark.jobs.verify'
"""

from duramen.spark.jobs.decoding import decoder
from duramen.spark.jobs.export import Exported, export
from duramen.spark.jobs.targets import committed_files
from duramen.spark.jobs.verify import verify, verify_rows

__all__ = ["Exported", "committed_files", "decoder", "export", "verify", "verify_rows"]

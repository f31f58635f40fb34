"""Jobs: heavy work on logs, as functions that take a SparkSession. The same work as in-process, on more machines.

>>> from duramen.spark import jobs
>>> jobs.verify.__module__
'duramen.spark.jobs.verify'
"""

from duramen.spark.jobs.compact import compact
from duramen.spark.jobs.convert import convert
from duramen.spark.jobs.export import Exported, export
from duramen.spark.jobs.export_target import committed_files
from duramen.spark.jobs.pipeline import read_pipeline, run_pipeline
from duramen.spark.jobs.profile import Profile, profile
from duramen.spark.jobs.profile_page import page as profile_page
from duramen.spark.jobs.replay import Into, Moved, ingest, replay
from duramen.spark.jobs.verify import verify, verify_rows

__all__ = [
    "Exported",
    "Into",
    "Moved",
    "Profile",
    "committed_files",
    "compact",
    "convert",
    "export",
    "ingest",
    "profile",
    "profile_page",
    "read_pipeline",
    "replay",
    "run_pipeline",
    "verify",
    "verify_rows",
]

"""How Spark finds the data source ``duramen`` by its name: it imports every module called ``pyspark_*`` and looks for
``DefaultSource``. Every session does that for every source, so nothing heavy is imported here."""

from duramen.spark import DuramenSource as DefaultSource

__all__ = ["DefaultSource"]

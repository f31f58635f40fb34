"""Logs in Spark: a data source, a sink and jobs. The only package that imports pyspark."""

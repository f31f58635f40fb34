"""Copy the orders of oak from one log to another, as a Spark Declarative Pipeline. Each run continues the last one.

It consists of a view over the log, a sink that is a log, and a flow between them: no table, so no catalog is needed.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
LOGS = os.path.abspath(os.environ.get("LOGS", "logs"))


@dp.temporary_view
def orders() -> DataFrame:
    return spark.readStream.format("duramen").option("columns", "timestamp,key,value").load(f"{LOGS}/orders")


dp.create_sink("oak", "duramen", {"path": f"{LOGS}/oak", "logFormat": "keratin"})


@dp.append_flow(target="oak")
def only_oak() -> DataFrame:
    return spark.readStream.table("orders").where("get_json_object(cast(value AS string), '$.wood') = 'oak'")

"""Brokers as peers: RabbitMQ Streams, Kafka, and Spark's Kafka source, each beside Duramen in the same run.

What is missing is installed on demand, and what cannot be is reported as not run. It is no part of `make bench`,
because it may install a system package and starts servers: `make bench-brokers`.
"""

from __future__ import annotations

from pathlib import Path

from bench.brokers import kafka, rabbitmq, sparksource
from bench.report import Subject

SUBJECTS: dict[str, Subject] = {
    "rabbitmq": rabbitmq.rabbitmq,
    "kafka": kafka.kafka,
    "spark-kafka": sparksource.spark_kafka,
}
PICTURE = Path(__file__).parents[1] / "scratch" / "brokers.svg"

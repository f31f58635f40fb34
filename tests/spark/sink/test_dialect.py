"""The dialect is an option of the sink like any other of the format."""

from __future__ import annotations

from duramen.formats import make
from duramen.spark.sink.options import parse_write_options


def test_the_sink_takes_the_dialect() -> None:
    parsed = parse_write_options(
        {"path": "/log", "logFormat": "osiris", "dialect": "program", "filter_by": "json:region"}
    )
    assert parsed.format_options == {"dialect": "program", "filter_by": "json:region"}
    assert parsed.log_format is not None
    assert make(parsed.log_format, **parsed.format_options).dialect == "program"

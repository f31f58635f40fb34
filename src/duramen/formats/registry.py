"""The formats by name, and the types of their options. A new format is one module and one line here."""

from __future__ import annotations

from typing import Any, TypedDict

from duramen.errors import UsageError
from duramen.formats.durable_log import DurableLog
from duramen.formats.fixed_slot import FixedSlot
from duramen.formats.format import Format
from duramen.formats.kafka import Kafka
from duramen.formats.keratin import Keratin
from duramen.formats.keys import KeyOf
from duramen.formats.osiris import Osiris
from duramen.formats.rustlog import RustLog

FORMATS: dict[str, type[Format]] = {
    kind.name: kind for kind in (DurableLog, Keratin, RustLog, Osiris, FixedSlot, Kafka)
}
WRITABLE = tuple(name for name, kind in FORMATS.items() if not kind.capabilities.read_only)
"""The formats that logs can be created and appended to in."""


class FormatOptions(TypedDict, total=False):
    """The options of all formats as keyword arguments, for type checkers and editors. ``Format.option_names`` says
    which format has which; a format refuses the others."""

    dialect: str
    segment_max_bytes: int
    segment_max_age_ms: int
    index_stride_bytes: int
    max_open_segments: int
    manifest_version: int
    index_interval_records: int
    header_bytes: int
    chunk_version: int
    compression: str
    epoch: int
    chunk_max_bytes: int
    chunk_max_records: int
    sub_batch_records: int
    max_uncompressed_bytes: int
    filter_bytes: int
    filter_by: str | KeyOf
    record_size: int
    pad: bytes | str
    lost_slots: str
    isolation: str
    leader_epoch: int
    batch_max_bytes: int
    topic_id: str
    log_start_offset: int
    aborted: str
    index_max_bytes: int


def names() -> tuple[str, ...]:
    """The format names, in the order of the documentation."""
    return tuple(FORMATS)


def make(name: str, **options: Any) -> Format:
    """The format with that name and these options.

    >>> make("keratin").name
    'keratin'
    """
    try:
        kind = FORMATS[name]
    except (KeyError, TypeError):
        raise UsageError(f"unknown format {name!r}", hint=f"the formats: {', '.join(FORMATS)}") from None
    return kind(**options)

"""The fields of decoded values: how often each is null, and the range of what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from duramen.values import Decoding

TEXT_CHARACTERS = 60
"""Of the least and the greatest text that are kept."""


@dataclass
class FieldRange:
    """One field. ``least`` and ``most`` are values, or sizes where ``is_size``: bytes of a binary, items of a list."""

    type: str
    rows: int = 0
    nulls: int = 0
    least: Any = None
    most: Any = None
    is_size: bool = False

    def merge(self, other: FieldRange) -> None:
        self.rows += other.rows
        self.nulls += other.nulls
        self.least = min((one for one in (self.least, other.least) if one is not None), default=None)
        self.most = max((one for one in (self.most, other.most) if one is not None), default=None)

    def as_dict(self) -> dict[str, Any]:
        share = round(self.nulls / self.rows, 6) if self.rows else None
        return {
            "type": self.type, "rows": self.rows, "nulls": self.nulls, "null_rate": share,
            "min": _shown(self.least), "max": _shown(self.most), "is_size": self.is_size,
        }  # fmt: skip


@dataclass
class Fields:
    """The fields of decoded columns by their paths, and how many values did not decode."""

    found: dict[str, FieldRange] = field(default_factory=dict)
    malformed: int = 0

    def add(self, decoding: Decoding, batch: pa.RecordBatch) -> None:
        decoded = decoding.columns(batch)
        for column, one in decoding.decoders.items():
            array = decoded[column]
            self.malformed += array.null_count - batch.column(column).null_count
            for path, kind, leaf in _leaves(column, one.type, array):
                range_ = _range_of(kind, leaf)
                self.found.setdefault(path, FieldRange(range_.type, is_size=range_.is_size)).merge(range_)

    def merge(self, other: Fields) -> None:
        self.malformed += other.malformed
        for path, range_ in other.found.items():
            self.found.setdefault(path, FieldRange(range_.type, is_size=range_.is_size)).merge(range_)

    def as_dict(self) -> dict[str, Any]:
        return {"malformed": self.malformed, "fields": {path: one.as_dict() for path, one in self.found.items()}}


def _leaves(path: str, kind: pa.DataType, array: pa.Array) -> Iterator[tuple[str, pa.DataType, pa.Array]]:
    """The fields that are no structs. A field of a struct that is null is null."""
    if not pa.types.is_struct(kind) or not kind.num_fields:
        yield path, kind, array
        return
    for part, values in zip(kind, array.flatten(), strict=True):
        yield from _leaves(f"{path}.{part.name}", part.type, values)


def _range_of(kind: pa.DataType, array: pa.Array) -> FieldRange:
    is_size = pa.types.is_binary(kind) or pa.types.is_nested(kind)
    found = FieldRange(str(kind), len(array), array.null_count, is_size=is_size)
    if array.null_count == len(array) or pa.types.is_struct(kind):
        return found
    values = _sizes(kind, array) if is_size else array
    if pa.types.is_string(kind):
        values = pc.utf8_slice_codeunits(values, 0, TEXT_CHARACTERS)
    ends = pc.min_max(values).as_py()
    found.least, found.most = ends["min"], ends["max"]
    return found


def _sizes(kind: pa.DataType, array: pa.Array) -> pa.Array:
    if pa.types.is_binary(kind):
        return pc.binary_length(array)
    if pa.types.is_map(kind):
        array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    return pc.list_value_length(array)


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)

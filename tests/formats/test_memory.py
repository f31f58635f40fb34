"""Memory that is used again: never while anything still refers to it, whatever that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from duramen.formats.arrow import _KEPT_BYTES, REUSED_FROM_BYTES, REUSED_UP_TO_BYTES, _scratch, allocate, binary_array

SIZE = REUSED_FROM_BYTES + 1000
HOLDERS: dict[str, Callable[[memoryview], Any]] = {
    "itself": lambda memory: memory,
    "a part of it": lambda memory: memory[5:10],
    "an array": lambda memory: np.frombuffer(memory, np.uint8),
    "a buffer of Arrow": pa.py_buffer,
    "a slice of values": lambda memory: binary_array(np.array([0, 3, 9], np.int32), memory).slice(1),
    "a table of them": lambda memory: pa.table({"value": binary_array(np.array([0, 3], np.int32), memory)}),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    _scratch.blocks = []


def address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


@pytest.mark.parametrize("name", HOLDERS)
def test_memory_in_use_is_not_given_again(name: str) -> None:
    first = allocate(SIZE)
    at = address(first)
    held = HOLDERS[name](first)
    del first
    assert not at - SIZE < address(allocate(SIZE)) < at + SIZE
    del held
    assert address(allocate(SIZE)) == at


def test_it_lies_in_its_page_as_in_the_file() -> None:
    for position in (0, 1, 4095, 4096, 123_456_789):
        assert address(allocate(SIZE, position)) % 4096 == position % 4096
    assert len(_scratch.blocks) == 1


def test_what_is_kept_is_bounded() -> None:
    held = [allocate(REUSED_UP_TO_BYTES) for _ in range(5)]
    assert sum(map(len, _scratch.blocks)) <= _KEPT_BYTES
    for number, memory in enumerate(held):
        memory[:] = bytes([number]) * len(memory)
    assert [memory[-1] for memory in held] == list(range(5))

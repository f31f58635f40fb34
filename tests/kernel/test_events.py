"""Runs of events: the compiled function against its Python twin, and against the events one by one."""

from __future__ import annotations

import zlib
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.twins import Refused, both, guarded

HEAD = bytes.fromhex("4b4500010001000000000014")


def encode_run(head: bytes, covered_from: int, start: int, count: int, rest: bytes, room: int | None = None) -> Any:
    size_bytes = count * (len(head) + 8 + len(rest) + 4) if room is None else room

    def make() -> Any:
        out = np.zeros(size_bytes, np.uint8)
        return (guarded(head), covered_from, start, count, guarded(rest), out), {}, (out,)

    answer = both("encode_run", make)
    return answer if isinstance(answer, Refused) else bytes(answer[1][0])


@given(
    st.binary(max_size=16).flatmap(lambda head: st.tuples(st.just(head), st.integers(0, len(head)))),
    st.integers(0, 2**64 - 700) | st.integers(0, 600) | st.integers(2**32 - 600, 2**32),
    st.integers(0, 600),
    st.binary(max_size=14),
)
def test_a_run_is_its_events(head: tuple[bytes, int], start: int, count: int, rest: bytes) -> None:
    prefix, covered_from = head
    expected = b""
    for number in range(start, start + count):
        event = prefix + number.to_bytes(8, "big") + rest
        expected += event + google_crc32c.value(event[covered_from:]).to_bytes(4, "big")
    assert zlib.crc32(encode_run(prefix, covered_from, start, count, rest)) == zlib.crc32(expected)


def test_the_last_number_there_is() -> None:
    assert encode_run(HEAD, 2, 2**64 - 2, 2, b"").count(HEAD) == 2
    assert encode_run(HEAD, 2, 2**64 - 1, 0, b"") == b""


@pytest.mark.parametrize(
    ("covered_from", "start", "count", "room", "why"),
    [
        (-1, 0, 1, None, "the checksum begins outside of the head"),
        (13, 0, 1, None, "the checksum begins outside of the head"),
        (2, 2**64 - 1, 2, None, "the numbers do not fit into 64 bits"),
        (2, 0, -1, 0, "the numbers do not fit into 64 bits"),
        (2, 0, 2, 47, "the buffer does not have the size of the events"),
        (2, 0, 2, 49, "the buffer does not have the size of the events"),
        (2, 0, 2**62, 0, "the buffer does not have the size of the events"),
    ],
)
def test_what_does_not_fit_is_refused(covered_from: int, start: int, count: int, room: int | None, why: str) -> None:
    assert encode_run(HEAD, covered_from, start, count, b"", room) == Refused(why)

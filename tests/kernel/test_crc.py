"""CRC-32 and CRC-32C: every implementation that this CPU can run, against zlib, google-crc32c and the Python twin."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen import kernel
from duramen.kernel import _crc, reference
from tests.kernel.twins import guarded

KINDS = ("crc32", "crc32c")
VARIANTS = [(kind, variant) for kind in KINDS for variant in _crc.crc_variants()[kind]]
MOST = 4096
ALIGNMENTS = range(64)

each_kind = pytest.mark.parametrize("kind", KINDS)
each_variant = pytest.mark.parametrize(("kind", "variant"), VARIANTS, ids=[f"{k}-{v}" for k, v in VARIANTS])


def independent(kind: str, data: bytes, value: int = 0) -> int:
    """A library that shares nothing with ours."""
    return zlib.crc32(data, value) if kind == "crc32" else google_crc32c.extend(value, data)


def compiled(kind: str) -> Callable[..., int]:
    return getattr(_crc, kind)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    """The checksum of the first n bytes of the noise, for every n up to `MOST`."""
    data = noise(MOST)
    return {kind: [independent(kind, data[:size]) for size in range(MOST + 1)] for kind in KINDS}


# --- what is there


def test_variants() -> None:
    variants = _crc.crc_variants()
    assert variants.keys() == {*KINDS, "digest"}
    for kind, names in variants.items():
        assert names[0] == ("apart" if kind == "digest" else "portable")
        assert len(set(names)) == len(names)


@each_kind
def test_a_variant_that_does_not_exist(kind: str) -> None:
    with pytest.raises(ValueError, match="no-such"):
        _crc.crc_with(kind, "no-such", b"")
    with pytest.raises(ValueError, match="crc64"):
        _crc.crc_with("crc64", "portable", b"")
    with pytest.raises(ValueError, match="no-such"):
        _crc.digest_with("no-such", b"")


@pytest.mark.skipif(kernel.PURE_PYTHON, reason="the twin is selected")
@each_kind
def test_the_kernel_exports_the_compiled_ones(kind: str) -> None:
    assert getattr(kernel, kind) is compiled(kind)


# The check values of the catalogue of parametrised CRC algorithms, and the golden vectors' own.
CHECKS = {
    "crc32": {
        b"": 0,
        b"123456789": 0xCBF43926,
        b"hello": 0x3610A686,
        b"\x00\xff" * 10: 0x0F2EEE7A,
        bytes(32): 0x190A55AD,
    },
    "crc32c": {
        b"": 0,
        b"123456789": 0xE3069283,
        b"hello": 0x9A71BB4C,
        b"\x00\xff" * 10: 0x1A572907,
        bytes(16): 0x42709AEA,
        bytes(32): 0x8A9136AA,  # this and the next three: RFC 3720, B.4
        b"\xff" * 32: 0x62A8AB43,
        bytes(range(32)): 0x46DD794E,
        bytes(reversed(range(32))): 0x113FDB5C,
    },
}


@each_variant
def test_known_values(kind: str, variant: str) -> None:
    for data, value in CHECKS[kind].items():
        assert _crc.crc_with(kind, variant, data) == value
        assert getattr(reference, kind)(data) == value
        assert independent(kind, data) == value


# --- every length, every alignment


@each_variant
def test_every_length_at_every_alignment(kind: str, variant: str, expected: dict[str, list[int]]) -> None:
    data, wanted, crc_with = noise(MOST), expected[kind], _crc.crc_with
    room = np.empty(MOST + len(ALIGNMENTS), np.uint8)
    seen = set()
    for alignment in ALIGNMENTS:
        place = room[alignment : alignment + MOST]
        place[:] = np.frombuffer(data, np.uint8)
        seen.add(place.ctypes.data % len(ALIGNMENTS))
        view = memoryview(place)
        assert [crc_with(kind, variant, view[:size]) for size in range(MOST + 1)] == wanted
    assert seen == set(ALIGNMENTS)


@each_variant
def test_no_byte_after_the_end_is_read(kind: str, variant: str, expected: dict[str, list[int]]) -> None:
    view = guarded(noise(MOST)[::-1])
    for size in range(MOST + 1):
        tail = view[MOST - size :]
        assert _crc.crc_with(kind, variant, tail) == independent(kind, tail.tobytes())


@each_kind
def test_the_twin_on_every_length(kind: str, expected: dict[str, list[int]]) -> None:
    """One byte at a time, each continuing from the last: the twin's chaining and its lengths at once."""
    data, twin, value = noise(MOST), getattr(reference, kind), 0
    for size in range(MOST):
        assert value == expected[kind][size]
        value = twin(data[size : size + 1], value)
    assert value == expected[kind][MOST]
    for size in (*range(40), 255, 256, 257, 1000, MOST):
        assert twin(data[:size]) == expected[kind][size]


@each_variant
@pytest.mark.parametrize("size", [MOST + 1, 65_535, 65_536, 1_000_003, 8_388_593])
def test_large_buffers(kind: str, variant: str, size: int) -> None:
    data = noise(size + 64, seed=size)
    for start in (0, 1, 7, 63):
        part = memoryview(data)[start : start + size]
        assert _crc.crc_with(kind, variant, part) == independent(kind, part.tobytes())


@each_variant
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80])
def test_monotonous_buffers(kind: str, variant: str, byte: int) -> None:
    for size in (*range(300), 1023, 1024, 1025, 3071, 3072, 3073, 100_000):
        data = bytes([byte]) * size
        assert _crc.crc_with(kind, variant, data) == independent(kind, data)


# --- chained


@each_variant
def test_chained_at_every_cut(kind: str, variant: str) -> None:
    data = noise(1500)
    whole = independent(kind, data)
    for cut in range(len(data) + 1):
        first = _crc.crc_with(kind, variant, data[:cut])
        assert _crc.crc_with(kind, variant, data[cut:], first) == whole


@given(st.lists(st.binary(max_size=2000), max_size=5), st.integers(0, 2**32 - 1), st.sampled_from(VARIANTS))
def test_chained_from_any_value(parts: list[bytes], value: int, which: tuple[str, str]) -> None:
    kind, variant = which
    by_variant, by_twin, by_library = value, value, value
    for part in parts:
        by_variant = _crc.crc_with(kind, variant, part, by_variant)
        by_twin = getattr(reference, kind)(part, by_twin)
        by_library = independent(kind, part, by_library)
        assert by_variant == by_twin == by_library
    assert _crc.crc_with(kind, variant, b"".join(parts), value) == by_variant


@each_kind
@given(data=st.binary(max_size=300), value=st.integers(0, 2**32 - 1))
def test_the_default_is_one_of_them(kind: str, data: bytes, value: int) -> None:
    assert compiled(kind)(data, value) == independent(kind, data, value)
    assert compiled(kind)(data) == independent(kind, data)


# --- arguments


@each_kind
@pytest.mark.parametrize("value", [-1, 2**32, 2**64, -(2**64)])
def test_a_value_of_more_than_32_bits_is_refused(kind: str, value: int) -> None:
    for half in (_crc, reference):
        with pytest.raises(ValueError, match="32 bits"):
            getattr(half, kind)(b"x", value)


@each_kind
@pytest.mark.parametrize("bad", [None, "text", 7, memoryview(b"abcdef")[::2]], ids=["None", "str", "int", "strided"])
def test_what_is_no_buffer_is_refused(kind: str, bad: Any) -> None:
    for half in (_crc, reference):
        with pytest.raises((TypeError, BufferError, ValueError)):
            getattr(half, kind)(bad)


@each_kind
def test_any_contiguous_buffer(kind: str) -> None:
    data = noise(80)
    wanted = independent(kind, data)
    numbers = np.frombuffer(data, np.int64)
    for buf in (data, bytearray(data), memoryview(b"x" + data + b"x")[1:-1], numbers, memoryview(numbers)):
        assert compiled(kind)(buf) == getattr(reference, kind)(buf) == wanted
    assert compiled(kind)(memoryview(b"")) == getattr(reference, kind)(bytearray()) == 0


# --- both at once

each_digest = pytest.mark.parametrize("variant", _crc.crc_variants()["digest"])


@each_digest
def test_both_at_every_length_and_some_alignments(variant: str, expected: dict[str, list[int]]) -> None:
    wanted = list(zip(expected["crc32c"], expected["crc32"], strict=True))
    room = np.empty(MOST + len(ALIGNMENTS), np.uint8)
    for alignment in (0, 1, 15, 16, 33, 63):
        place = room[alignment : alignment + MOST]
        place[:] = np.frombuffer(noise(MOST), np.uint8)
        view = memoryview(place)
        assert [_crc.digest_with(variant, view[:size]) for size in range(MOST + 1)] == wanted


@each_digest
def test_both_read_no_byte_after_the_end_and_continue_from_any_value(variant: str) -> None:
    view, random_values = guarded(noise(MOST)[::-1]), random.Random(5)
    for size in range(MOST + 1):
        tail, first, second = view[MOST - size :], random_values.getrandbits(32), random_values.getrandbits(32)
        wanted = independent("crc32c", tail.tobytes(), first), independent("crc32", tail.tobytes(), second)
        assert _crc.digest_with(variant, tail, first, second) == wanted


def test_both_of_a_long_buffer() -> None:
    data = noise(300_001)
    wanted = independent("crc32c", data), independent("crc32", data)
    assert kernel.digest(data) == _crc.digest(memoryview(data)) == reference.digest(data) == wanted
    assert _crc.digest(data[777:], *_crc.digest(data[:777])) == wanted
    assert _crc.digest(np.frombuffer(data[:300_000], np.uint64)) == reference.digest(data[:300_000])


@pytest.mark.parametrize("implementation", [_crc.digest, reference.digest])
def test_both_refuse_what_is_no_value(implementation: Callable[..., Any]) -> None:
    for values in ((2**32, 0), (0, -1)):
        with pytest.raises(ValueError, match="32 bits"):
            implementation(b"", *values)

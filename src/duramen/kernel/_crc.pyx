# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled `crc32`, `crc32c` and `digest`; their twins and their contract are in reference.py.

Takes any C-contiguous buffer, whatever its item type, as its bytes. `crc_variants`, `crc_with` and `digest_with` exist
for the tests alone: they reach the implementations that this CPU could run but that are not the fastest here.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.number cimport PyNumber_Index
from libc.stdint cimport int64_t, uint8_t, uint32_t

from duramen.kernel._digests cimport duramen_digests
from duramen.kernel._pages cimport PASS_BYTES, duramen_mapped_begin, duramen_mapped_end, duramen_passed, looked_at

from duramen.kernel.layout import is_mapping


cdef extern from "crc.h" nogil:
    ctypedef uint32_t (*duramen_crc_fn)(uint32_t, const uint8_t *, size_t) noexcept
    ctypedef struct duramen_crc_variant:
        const char *name
        duramen_crc_fn fn
    uint32_t duramen_crc32(uint32_t crc, const uint8_t *data, size_t len) noexcept
    uint32_t duramen_crc32c(uint32_t crc, const uint8_t *data, size_t len) noexcept
    ctypedef void (*duramen_digest_fn)(duramen_digests *, const uint8_t *, size_t) noexcept
    ctypedef struct duramen_digest_variant:
        const char *name
        duramen_digest_fn fn
    void duramen_digest(duramen_digests *sums, const uint8_t *data, size_t len) noexcept
    size_t duramen_digest_variants(const duramen_digest_variant **out) noexcept
    size_t duramen_crc32_variants(const duramen_crc_variant **out) noexcept
    size_t duramen_crc32c_variants(const duramen_crc_variant **out) noexcept


# Below this, handing the GIL over and back costs more than the checksum.
cdef Py_ssize_t _NOGIL_FROM = 4096


cdef uint32_t _uint32(value) except? 0:
    try:
        return PyNumber_Index(value)  # a plain conversion would take 1.5
    except OverflowError:
        raise ValueError("value must fit into 32 bits") from None


# A typed memoryview would refuse other item types, and add more time than the checksum of a short record takes.
cdef uint32_t _run(duramen_crc_fn fn, data, value) except? 0:
    cdef uint32_t crc = _uint32(value)
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    cdef bint mapped
    if view.len < _NOGIL_FROM:
        crc = fn(crc, <const uint8_t *>view.buf, <size_t>view.len)
    else:
        mapped = view.len >= PASS_BYTES // 4 and is_mapping(data)
        with nogil:
            if mapped:
                duramen_mapped_begin(<const uint8_t *>view.buf, view.len)
            crc = fn(crc, <const uint8_t *>view.buf, <size_t>view.len)
            if mapped:
                looked_at(<const uint8_t *>view.buf, 0, view.len)
                duramen_mapped_end()
    PyBuffer_Release(&view)
    return crc


def crc32(data, value=0):
    return _run(duramen_crc32, data, value)


def crc32c(data, value=0):
    return _run(duramen_crc32c, data, value)


cdef tuple _digest(duramen_digest_fn fn, data, crc32c, crc32):
    cdef duramen_digests sums
    cdef Py_buffer view
    sums.crc32c = _uint32(crc32c)
    sums.crc32 = _uint32(crc32)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    cdef bint mapped
    cdef int64_t at = 0
    if view.len < _NOGIL_FROM:
        fn(&sums, <const uint8_t *>view.buf, <size_t>view.len)
    else:
        mapped = view.len >= PASS_BYTES // 4 and is_mapping(data)
        with nogil:
            if mapped:
                duramen_mapped_begin(<const uint8_t *>view.buf, view.len)
            while view.len - at > PASS_BYTES:
                fn(&sums, <const uint8_t *>view.buf + at, <size_t>PASS_BYTES)
                duramen_passed(<const uint8_t *>view.buf + at, <const uint8_t *>view.buf + at + PASS_BYTES)
                at += PASS_BYTES
            fn(&sums, <const uint8_t *>view.buf + at, <size_t>(view.len - at))
            if mapped:
                looked_at(<const uint8_t *>view.buf, 0, view.len)
                duramen_mapped_end()
    PyBuffer_Release(&view)
    return sums.crc32c, sums.crc32


def digest(data, crc32c=0, crc32=0):
    return _digest(duramen_digest, data, crc32c, crc32)


cdef size_t _variants(str kind, const duramen_crc_variant **out) except 0:
    if kind == "crc32":
        return duramen_crc32_variants(out)
    if kind == "crc32c":
        return duramen_crc32c_variants(out)
    raise ValueError(f"no such checksum: {kind}")


def crc_variants():
    cdef const duramen_crc_variant *variants = NULL
    cdef size_t count
    names = {}
    for kind in ("crc32", "crc32c"):
        count = _variants(kind, &variants)
        names[kind] = [variants[i].name.decode("ascii") for i in range(count)]
    names["digest"] = list(_digest_variants())
    return names


def crc_with(str kind not None, str variant not None, data, value=0):
    cdef const duramen_crc_variant *variants = NULL
    cdef size_t count = _variants(kind, &variants)
    cdef size_t i
    cdef bytes wanted = variant.encode("utf-8")
    for i in range(count):
        if variants[i].name == wanted:
            return _run(variants[i].fn, data, value)
    raise ValueError(f"this CPU has no {kind} variant called {variant}")


cdef dict _digest_variants():
    cdef const duramen_digest_variant *variants = NULL
    cdef size_t count = duramen_digest_variants(&variants)
    return {variants[i].name.decode("ascii"): i for i in range(count)}


def digest_with(str variant not None, data, crc32c=0, crc32=0):
    cdef const duramen_digest_variant *variants = NULL
    cdef size_t number
    duramen_digest_variants(&variants)
    try:
        number = _digest_variants()[variant]
    except KeyError:
        raise ValueError(f"this CPU has no digest variant called {variant}") from None
    return _digest(variants[number].fn, data, crc32c, crc32)

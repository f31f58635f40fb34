# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled `crc32` and `crc32c`; their twins and their contract are in reference.py.

Takes any C-contiguous buffer, whatever its item type, as its bytes. `crc_variants` and `crc_with` exist for the tests
alone: they reach the implementations that this CPU could run but that are not the fastest here.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.number cimport PyNumber_Index
from libc.stdint cimport uint8_t, uint32_t


cdef extern from "crc.h" nogil:
    ctypedef uint32_t (*duramen_crc_fn)(uint32_t, const uint8_t *, size_t) noexcept
    ctypedef struct duramen_crc_variant:
        const char *name
        duramen_crc_fn fn
    uint32_t duramen_crc32(uint32_t crc, const uint8_t *data, size_t len) noexcept
    uint32_t duramen_crc32c(uint32_t crc, const uint8_t *data, size_t len) noexcept
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
    if view.len < _NOGIL_FROM:
        crc = fn(crc, <const uint8_t *>view.buf, <size_t>view.len)
    else:
        with nogil:
            crc = fn(crc, <const uint8_t *>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return crc


def crc32(data, value=0):
    return _run(duramen_crc32, data, value)


def crc32c(data, value=0):
    return _run(duramen_crc32c, data, value)


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

# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False
"""Compiled `guard`, `lost_at` and `unguard`; their twins and their contract are in reference.py."""

from libc.stdint cimport int64_t, uint8_t


cdef extern from "mappings.h" nogil:
    int64_t duramen_guard(const uint8_t *data, int64_t size_bytes)
    int64_t duramen_lost_at(int64_t number)
    void duramen_unguard(int64_t number)


def guard(const uint8_t[::1] mapping not None):
    return duramen_guard(&mapping[0], mapping.shape[0]) if mapping.shape[0] else -1


def lost_at(int64_t number):
    return duramen_lost_at(number)


def unguard(int64_t number):
    duramen_unguard(number)

"""Verbs on one log: create, append, seal, info, cat, dump, verify, repair, reindex, convert, copy, retain, compact."""

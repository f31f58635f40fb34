"""Verbs on the consumers of a log: group, cursor, lag."""

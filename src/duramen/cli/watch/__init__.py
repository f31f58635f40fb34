"""Verbs that watch logs and only read: top on the terminal, serve as a web page."""

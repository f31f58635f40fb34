"""Watching logs: what they are doing, as numbers over time, and what they hold. Reads only; never a trace in a log.

`places` finds the logs, `observing` looks at one from time to time, `browsing` shows its records, `server` puts it all
on a local web page. `duramen top` shows the same on a terminal.
"""

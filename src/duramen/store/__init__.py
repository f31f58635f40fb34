"""Many logs as topics with partitions, in the tree of RustLog.

`names` says what a topic may be called, `layout` where everything lies, `settings` what is remembered of a topic,
`partitioner` which partition a record goes to, `topic` and `store` put them together. Nothing here knows a byte of a
log.
"""

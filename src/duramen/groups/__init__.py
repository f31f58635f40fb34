"""What stands above one log: consumer groups, cursors and producers. State beside the records, never in their way.

`log` hangs them on the log object, `cursors` keeps positions under a name, `machine` is a group's state without I/O,
`group` is the group that people use. Everything here can be deleted without losing a record.
"""

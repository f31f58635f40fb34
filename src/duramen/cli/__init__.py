"""The command line: ``duramen VERB …``.

`main` runs the verbs; it alone prints errors and decides the exit code. `verbs` lists them and imports the one that
runs. A verb is a module with a typer ``command`` that parses options and returns a job. Verbs are grouped by what they
work on: `log`, `consumers`, `store`, `watch`, `pipeline` (Spark) and `demo`. Shared parts: `arguments` (common
options), `address` (``ROOT#topic/partition``), `output` (tables, JSON, colours, progress), `records` (printing records)
and `signals` (ctrl-C and SIGTERM).

A verb contains no logic that a library function should have: it parses, calls the library, and prints.
"""

"""The command line: ``duramen VERB …``.

`main` registers the verbs and runs them; it alone prints errors and decides the exit code. A verb is a module with a
typer ``command`` that parses options and returns a job. Verbs are grouped by what they work on: `log`, `consumers`,
`store`, `watch`, `pipeline` (Spark) and `demo`. Shared parts: `arguments` (common options), `address`
(``ROOT#topic/partition``), `output` (tables, JSON, colours, progress), `records` (printing records) and `signals`
(ctrl-C and SIGTERM).

A verb contains no logic that a library function should have: it parses, calls the library, and prints.
"""

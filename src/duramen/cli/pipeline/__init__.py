"""``duramen pipeline VERB``: jobs on Spark. `pipeline` has one function per verb, `options` the shared options, and
`progress` draws the progress line. Spark is imported when a verb runs."""

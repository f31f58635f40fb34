"""Speed on Spark, as ratios inside one run. `python -m bench.spark` runs all of it."""

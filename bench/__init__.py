"""Speed, measured as ratios inside one run: machines differ, ratios travel."""

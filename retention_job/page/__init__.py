"""Makes and writes a report: summaries, plots, the page, the textfile, and the output's tables."""

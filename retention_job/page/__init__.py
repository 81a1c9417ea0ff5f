"""What a report shows, and where it goes: summaries, plots, the page, the textfile, and the output's tables."""

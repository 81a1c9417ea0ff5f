"""Cheap deadlines, counters and histograms for what the event loop does for each object."""

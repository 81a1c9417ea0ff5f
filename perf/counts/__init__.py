"""Counts of the work of three agents for one object, which noise on the machine does not distort."""

"""A history with planted defects, in memory, and what must be found in it."""

"""A history with planted defects, in memory or as large as wanted, and what must be found in it."""

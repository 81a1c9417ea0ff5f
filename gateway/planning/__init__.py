"""Plans the listeners and ports through which clients stay in their zone."""

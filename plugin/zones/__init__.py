"""A bucket for each zone: one store made of several."""

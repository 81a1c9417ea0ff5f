"""Merges combined segments into archive objects of one partition each, and finds records in them."""

"""Rows and entry blocks of segments, in memory and on disk."""

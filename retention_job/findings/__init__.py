"""Finds what is wrong, ranks it, and hands safe deletions over to the agents."""

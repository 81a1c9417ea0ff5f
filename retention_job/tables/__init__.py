"""Combines the sources:

objects by their states, the records that count, ranges of offsets, and the state for the next run.
"""

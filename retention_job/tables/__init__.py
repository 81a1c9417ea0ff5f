"""What the sources say, put together: objects by their states, which records count, ranges of offsets, and what one run
leaves for the next.
"""

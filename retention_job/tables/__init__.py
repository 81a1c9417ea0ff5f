"""Puts the sources together.

In the order in which data meets them:

- `history`: all sources, read once; `listings` and `tier` are of them
- `fences`: records that do not count
- `objects`: a row for each object
- `coverage`: offsets in objects, gaps, and what elections killed
- `state`: for the next run
"""

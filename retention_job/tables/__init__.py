"""Puts together what the sources say of objects and offsets, as tables.

In the order in which data meets them:

- `history`: all sources, read once; `listings` of stores and KIP-405's `tier` are two of them
- `fences`: records that do not count
- `objects`: a row for each object
- `coverage`: offsets in objects, gaps, and what elections killed
- `state`: for the next run
"""

"""Dollars per GB on a virtual clock: the write path's own decisions, with models of everything else.

- `load`: what is produced
- `world`: producers, followers and a store around the write path's core
- `sweep`: all loads, priced
"""

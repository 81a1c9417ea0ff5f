"""Dollars per GB on a virtual clock: the write path's own decisions, with models of everything else."""

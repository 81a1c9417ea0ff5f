"""Dollars per GB on a virtual clock: the write path's own decisions over models of all the rest."""

"""Benchmarks, each a command of its own; `ladder` climbs from a cluster without agents upward."""

"""Benchmarks, each a command of its own; `ladder` starts with a cluster without agents and adds one thing at a time."""

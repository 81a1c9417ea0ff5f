"""The demonstration.

In the order in which a run meets them:

- `plan`: amounts and times, chosen before
- `run`: all steps
- `load`, `faults`: what writes, and what breaks
- `measurement`: what agents count
- `report`, `presentation`: figures and promises, and how they are shown
"""

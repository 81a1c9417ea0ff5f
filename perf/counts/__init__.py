"""Counts of the work of three agents for one object, which noise on the machine does not distort.

- `counted_agent`: an agent that counts its calls
- `command`: the loads, and the table
"""

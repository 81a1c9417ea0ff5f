"""The soak behind `python -m perf soak`: a `load` flows while faults strike as planned, then all is judged at rest.

`verifiable_clients` are Kafka's own, as in its system tests; `stored_offsets` asks the store what it holds.
"""

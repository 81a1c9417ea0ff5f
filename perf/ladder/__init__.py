"""Runs loads of clients in turns on stock Kafka and on the rungs of the ladder, in one run.

- `command`: loads and rungs
- `turns`: runs them
- `report`: tables and JSON
"""

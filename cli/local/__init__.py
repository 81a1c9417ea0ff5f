"""Commands that start a cluster on this machine.

- `demo`: one that shows itself
- `cluster`: one to keep
- `kafka`: Kafka's own tools against it
"""

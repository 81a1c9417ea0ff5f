"""The metadata of combined segments on Kafka topics: what agents publish of them, and what readers know.

In the order in which data meets them:

- `records`: what is said of objects, and its bytes
- `topic`: publishes it, and follows the topic
- `store`: what the records say together; `store.snapshots` saves that
- `settings`: the other topic: settings, registrations, leases, requests
- `kip405`: what the long-term tier says of itself
"""

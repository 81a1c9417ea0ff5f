"""Benchmarks, each a command of its own.

- `clusters`, `loads`: what they share
- `ladder`: starts with a cluster without agents and adds one thing at a time, up to clients by gateways
- `defaults`: the policy, and packing, on brokers
- `cost`: dollars on a virtual clock
- `counts`: calls and system calls for one object
- `spark`: the report over many objects, and the source
"""

"""Benchmarks, each a command of its own.

- `clusters`, `loads`: what they share
- `ladder`: starts with a cluster without agents and adds one thing at a time
- `defaults`, `pack`, `gateway`: the policy, packing, and clients by gateways, on brokers
- `cost`: dollars on a virtual clock
- `counts`: calls and system calls for one object
- `size`, `spark`: many objects, in recovery and in Spark
"""

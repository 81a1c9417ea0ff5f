"""Builds the agent's parts from the settings, in the order in which an agent begins.

- `relaying`: both proxies, all inline; with `peering`, the addresses and certificates of agents
- `gateway`: what serves clients, if it is on; `standby` leads them while the agent is dead
- `storage_system`: all the rest; it restarts as one, and `agent_resources` has what its parts share
- `kafka_following`: topics, settings, metadata, leadership
- `write_path`: uploads what is led here
- `lifecycle`: what becomes of the objects
"""

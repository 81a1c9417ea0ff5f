"""Produce requests by object storage: the gateway cuts records out, the agent beside the leader splices them in."""

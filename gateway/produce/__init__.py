"""Produce requests through object storage: the gateway cuts records out, the agent beside the leader puts them back."""

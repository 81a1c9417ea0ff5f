"""Produce requests through object storage: the gateway cuts records out, the agent beside the leader puts them back.

In the order in which data meets them:

- `produce_frame`: where the records of a request are
- `route_decider`: whether an object pays
- `router_channel`: one object for many requests, and the sweep for those of gateways that died
- `route_request`: cuts records out for the other side, and puts them back
- `route_core`: order and deadlines at the gateway
- `splice_core`: order there
"""

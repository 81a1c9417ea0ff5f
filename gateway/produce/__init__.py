"""Produce requests through object storage: the gateway cuts records out, the agent beside the leader puts them back.

In the order in which data meets them:

- `produce_frame`: where the records of a request are
- `route_decider`: whether an object pays
- `request_splicer`: cuts records out, and puts them back
- `router_channel`: one object for many requests, and the sweep for those of gateways that died
- `route_core`: order and deadlines at the gateway; `route_request` goes to the other side
- `splice_core`: order there
"""

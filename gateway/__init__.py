"""The zone gateway for Kafka's clients: they reach brokers of other zones through agents of their own zone.

In the order in which data meets them:

- `planning`: the listeners that it needs
- `zone_gateway`, `client_listeners`: listen in the client's zone, for brokers that `zone_proxies` gives to this agent
- `gateway_pipe`: relays a client's frames to the agent beside the broker, in stages: `serve`, `produce`, and what
  replication.follower hydrates; `client_protocol` is how the two agents begin
- `router_uploads`: objects of what clients produce, and which of them logs need
- `client_handler`: connects clients to the broker, at the agent beside it
- `broker_pipe`: relays them there, in stages: `produce`, `consume`, `durable`
- `client_port`, `client_zone`: single addresses: of one zone, of all zones, and where bytes pass unread
- `standby`: in the place of a dead agent
- `metrics`: what is counted

A connection's requests wait for their responses in one order, `replication.wire.request_order`.
"""

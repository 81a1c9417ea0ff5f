"""The zone gateway for Kafka's clients: they reach brokers of other zones through agents of their own zone.

    zone_gateway    listens in the client's zone, and connects to the agent beside the broker
    gateway_pipe    relays a client's frames there, in stages: serve, produce, and what replication.follower hydrates
    client_handler  connects them to the broker, at the agent beside it
    broker_pipe     relays them there, in stages: produce, consume, durable
    byte_relay      relays bytes where no stage takes part

A connection's requests wait for their responses in one order, `replication.wire.request_order`.
"""

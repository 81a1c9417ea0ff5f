"""The wire format between agents, and Kafka's frames as far as they are read.

In the order in which data meets them:

- `peer_listener`, `peer_connection`: accept and dial; `peer_protocol` has the hellos and messages
- `framed_connection`, `frame_inbox`: frames, within a `memory_budget`
- `peer_channel`: messages, packed by `packed_message` where `packing` allows it
- `kafka_frame`, `fetch_frame`, `idle_fetch`: what is read of Kafka's frames
- `broker_requests`, `refusals`: which requests pass, and the answer to others
- `link`: the response with links instead of records
- `shared_reads`: ranges that one agent reads for its zone
- `link_defects`, `circuit_breaker`: what fails is left alone for a while
- `sasl_login`, `socket_owner`: who the agent is elsewhere, and who is at its ports
- `metrics`: bytes, and every fault by its reason
"""

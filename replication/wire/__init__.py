"""The wire format between agents, and Kafka's frames as far as they are read.

In the order in which data meets them:

- `peer_listener`, `peer_connection`: accept and dial; `peer_protocol` has the hellos and all messages
- `framed_connection`, `frame_inbox`: frames, within a `memory_budget`
- `peer_channel`: messages, packed by `packed_message` where `packing` allows it
- `kafka_frame`, `fetch_frame`, `idle_fetch`: what is read of Kafka's frames
- `broker_requests`, `request_order`: which requests pass between brokers, and which response is whose
- `link`: the response with links instead of records
- `link_defects`, `circuit_breaker`: what fails is left alone for a while
- `sasl_login`: who the agent is elsewhere
- `metrics`: bytes, and every fault by its reason
"""

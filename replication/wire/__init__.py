"""The wire format: Kafka's Fetch frames, links, the protocol between agents, framing and its limits."""

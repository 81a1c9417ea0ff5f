"""What goes over connections: Kafka's Fetch frames, links, the protocol between agents, framing and its bounds."""

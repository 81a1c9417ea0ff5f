"""The agent's metrics beside those of the rooms, and their presentation to Prometheus."""

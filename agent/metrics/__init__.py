"""What the agent counts beside what the rooms count themselves, and how it is told to Prometheus."""

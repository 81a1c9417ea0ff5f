"""The metadata of combined segments on Kafka topics: what agents publish of them, and what readers know."""

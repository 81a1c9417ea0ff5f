"""Asks a Kafka cluster what it has.

In the order in which data meets them:

- `client_config`: a Java client's properties, translated for librdkafka; `kafka_python_config` has the other client's
- `preflight`: what a bootstrap server speaks
- `cluster`: the questions; `responses` has their values, `errors` what went wrong
- `flushing`: waits for a producer
"""

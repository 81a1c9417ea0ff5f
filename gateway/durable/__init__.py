"""Durable acknowledgement: a Produce response is held until its records are stored and published, or replicated.

In the order in which data meets them:

- `pipelined_acks`: acks=all is forwarded as acks=1
- `leader_questions`: asks the leader on the same connection
- `produce_response`: what a response says of each partition
- `durable_logs`: which offsets are stored, as `durable_uploads` tells it
- `held_responses`: responses in order, until their conditions are met
"""

"""Durable acknowledgement: a Produce answer is held until its records are stored and published, or replicated.

In the order in which data meets them:

- `own_zone_port`: where clients of the own zone come
- `pipelined_acks`: acks=all goes on as acks=1
- `leader_questions`, `watermark_frames`: asks the leader on the same connection
- `produce_answer`: what an answer says of each partition
- `durable_logs`: which offsets are stored
- `held_answers`: answers in order, until what they wait for is so
"""

"""Makes objects of what was read, uploads them, and notifies others (KIP-1176).

In the order in which data meets them:

- `segment_queue`: remoteSegmentQ: what was read and is in no object
- `adoptable_records`: what gateways have stored of it already
- `combine_task`: RLMWalCombineTask: one object of many partitions' batches
- `published_offsets`: how far logs are stored and published
- `tail_uploads`: uploads a log's tail for who asks before a move
"""

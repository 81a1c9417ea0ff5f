"""Makes objects of what was read, uploads them, and notifies others (KIP-1176).

In the order in which data meets them:

- `segment_queue`: remoteSegmentQ: what was read and is in no object
- `adoptable_records`: what gateways have stored of it already
- `combine_task`: RLMWalCombineTask: one object of many partitions' batches
- `upload_listener`: who is told of it; `published_offsets`: how far logs are stored and published
- `object_spacing`: how far apart uploads are, so that all agents together make not too many
- `tail_uploads`: uploads a log's tail when a move asks for it
"""

"""The metadata topic: made, written and read.

In the order in which data meets them:

- `topic`, `topic_requirements`: names and settings, and what an existing topic lacks
- `metadata_topics`: makes both topics, and looks after them
- `publication_queue`, `publisher`, `publication_watch`: records wait, go out by `topic_producer`, or are stuck
- `topic_follower`: reads a topic by `topic_consumer`; `reading_positions` says how far
- `consumer`: puts what is read into a store
- `followed_metadata`: all of that for an agent; `topic_session` for a command
"""

"""Replication through object storage: `leader` makes links, `follower` reads linked bytes; both share only `wire`."""

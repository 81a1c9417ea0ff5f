"""The leader's side: replaces records in the local broker's responses by links if they are stored.

In the order in which data meets them:

- `leader_proxy`: where other agents dial; `leader_context` is what its connections share
- `leader_relay`: one connection, as `relay_core` decides
- `fetch_waits`: how long the broker may let a Fetch wait
- `link_index`: which batches are stored, and where
- `link_planner`: links, a wait, or the bytes
- `upload_signal`: ends a wait when an upload does
- `response_links`: puts the links in
- `catch_up`, `read_ahead`: links for followers that are far behind
- `follower_offsets`, `zones`: how far followers are, and in which zone
- `guarded_write_path`: the write path, if it runs
- `shadow`: what links would do
"""

"""Consumers' Fetch requests that the gateway answers itself, from what it reads once for all. See docs/gateway.md.

In the order in which data meets them:

- `fetch_frames`: a client's requests
- `serve_permission`: whether the cluster lets the gateway answer
- `tails`: one connection to each broker's agent, where `tail_handler` answers
- `log_tail`, `visible_log`: what consumers may see of each partition
- `serving`: decides; the gateway's pipe answers
"""

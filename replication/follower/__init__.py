"""The follower's side: turns links back into the leader's bytes, through the leader's agent or past it.

In the order in which data meets them:

- `follower_proxy`: where the broker's fetchers dial; `follower_context` is what its connections share
- `peer_watch`: which agents live
- `leader_bypass`: the route past a dead one
- `hydrated_responses`: links become bytes, in the order of requests
- `range_cache`: what of objects is cached or being read
- `hydration`: reads each range once; `tiers` knows the places
- `neighbours`: or asks an agent of the own zone
- `catch_up_reads`: reads ahead for a broker that is far behind
"""

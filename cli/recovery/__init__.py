"""Commands that restore, move, or check what is stored.

- `verify`, `recover`: a broker's logs, from `recovery_sources`; `recovery_table` prints them
- `held`: records that a log lost and objects hold
- `metadata`, `orphans`, `lease`: the metadata topic, its differences from the listing, and whose bucket it is
- `reassign`, `decommission`: replicas, and the objects of a broker that is gone
"""

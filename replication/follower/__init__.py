"""The follower's side: turns links back into the leader's bytes, through the leader's agent or past it."""

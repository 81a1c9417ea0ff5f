"""The follower's side of one agent, among leaders that are played."""

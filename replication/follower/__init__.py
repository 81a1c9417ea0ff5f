"""The follower's side: links become the leader's bytes again, by way of its agent or past it."""

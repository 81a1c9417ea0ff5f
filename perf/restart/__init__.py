"""An agent's end and start, and what a follower misses meanwhile."""

"""From an append to a stored, announced object: tasks, group commit, the queue, uploads, the backlog."""

"""Turns appends into stored, announced objects: tasks, group commit, the queue, uploads, the backlog."""

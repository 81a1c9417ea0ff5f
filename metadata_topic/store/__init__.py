"""What the records say together: objects, runs, archives, gaps; its snapshots."""

"""The life of stored objects: release, expiration, orphans, gaps, care of nodes, logs that change leaders."""

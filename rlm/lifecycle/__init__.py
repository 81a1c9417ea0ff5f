"""What becomes of stored objects: release, expiration, orphans, gaps, and logs that change their leader."""

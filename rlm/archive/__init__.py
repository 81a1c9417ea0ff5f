"""Combined segments merged into archive objects, one partition each, and found in them again."""

"""What is known of the archive's objects."""

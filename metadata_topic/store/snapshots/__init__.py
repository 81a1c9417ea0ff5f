"""What is known, saved in object storage and loaded from there."""

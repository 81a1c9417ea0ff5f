"""Storage managers around another one, and what limits its requests."""

"""Keys and certificates: those of the broker, and how long they are valid."""

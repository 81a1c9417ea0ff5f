"""The metadata topic: creating, following, publishing to and doubting it, and the clients for it."""

"""The write path without IO: it takes events and the time, and returns actions."""

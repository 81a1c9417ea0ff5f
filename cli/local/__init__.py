"""Commands that start a cluster on this machine."""

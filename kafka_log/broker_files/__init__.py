"""Reads the files that a broker keeps beside its segments: settings, identities and checkpoints."""

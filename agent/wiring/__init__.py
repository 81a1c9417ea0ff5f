"""Puts the rooms together from the settings: a builder for each."""

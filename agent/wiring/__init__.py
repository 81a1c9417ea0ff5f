"""Puts the rooms together from the settings: a builder for each, and what is restarted when a part fails."""

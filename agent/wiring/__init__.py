"""Puts the rooms together from the settings: a builder for each, and what begins anew when a part fails."""

"""The agent's settings: one section for each room, in SI units, and what follows from them alone."""

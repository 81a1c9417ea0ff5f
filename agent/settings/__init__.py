"""The agent's settings: one section for each room, in SI units, and values derived from them."""

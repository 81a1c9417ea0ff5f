"""The metadata topic: its volume, how it is applied, and judging which objects may go."""

"""The demonstration: a plan, faults, figures of what crossed zones and what it costs, and their presentation."""

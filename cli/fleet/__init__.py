"""Commands for agents: their files, what they do now, and which topics they care for."""

"""Commands that restore, move, or check what is stored."""

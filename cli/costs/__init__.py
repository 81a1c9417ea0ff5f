"""Commands that tell what things cost."""

"""The leader's side: replaces records in the local broker's responses by links if they are stored."""

"""What three agents do for one object, in counts that no noise bends."""

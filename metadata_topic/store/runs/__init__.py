"""Where uploaded runs of offsets are: a sorted index, in memory and on disk."""

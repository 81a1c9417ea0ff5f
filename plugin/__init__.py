"""Remote storage for combined segments: the seam, the object format and the backends."""

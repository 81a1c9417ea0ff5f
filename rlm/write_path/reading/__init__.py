"""The active segments: where to go on, who tells of appends, and RLMWalTask, which reads them (KIP-1176)."""

"""Reads the active segments (KIP-1176): where to continue, who reports appends, and RLMWalTask."""

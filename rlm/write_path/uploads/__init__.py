"""Makes objects of what was read, uploads them, and notifies others: remoteSegmentQ, RLMWalCombineTask (KIP-1176)."""

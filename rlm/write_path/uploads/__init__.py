"""What was read, made into objects and uploaded, and who is told: remoteSegmentQ, RLMWalCombineTask (KIP-1176)."""

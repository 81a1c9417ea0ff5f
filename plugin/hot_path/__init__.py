"""What is cheap enough for each object.

- `deadline`: time-outs
- `loop_metrics`: counters and histograms of the event loop
"""

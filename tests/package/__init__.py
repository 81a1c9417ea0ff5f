"""What is installed: the wheel, and what stands in deploy/."""

"""Hours of load with faults in random order, and what must hold true all the while."""

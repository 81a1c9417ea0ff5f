"""What is wrong, how bad it is, and handing safe deletions over to the agents."""

"""Object stores of this machine: look-alikes with faults, a native S3 server, and the agents' settings for them."""

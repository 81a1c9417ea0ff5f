"""Object stores of this machine: a directory, a native S3 server, and the agents' settings for them."""

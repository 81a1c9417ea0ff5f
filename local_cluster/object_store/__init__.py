"""Object stores of this machine.

- `store_spec`: the agents' settings for one
- `native`: an S3 server in Go
"""

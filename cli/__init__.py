"""The command `remote-wal`:

a module per sub-command, `main` that finds them, `start` that begins quickly, and the options and tables that commands
share.
"""

"""The command `remote-wal`: `main` finds its sub-commands, `start` begins quickly; options and tables are shared."""

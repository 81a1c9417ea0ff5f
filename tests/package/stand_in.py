"""What stands in for a command that runs until it is ended."""

FOR_EVER = "while kill -0 $PPID 2>/dev/null; do sleep 0.01; done"
"""Shell that waits for a signal, but no longer than what started it lives."""

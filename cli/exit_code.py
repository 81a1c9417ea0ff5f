"""What a command's end says to whoever started it: one scheme for all commands."""

from enum import IntEnum


class ExitCode(IntEnum):
    """From 4 on only where a program must tell it apart; a scheduler may take all but 0 for trouble."""

    GOOD = 0
    """Done, and nothing was found; notes do not count."""
    FINDINGS = 1
    """Something is to be looked at, or not all was done."""
    USAGE = 2
    """The command was wrong, or a file that it names; nobody was asked."""
    UNKNOWN = 3
    """It could not be found out, or not be done: somebody did not answer, or refused. One line on stderr says who."""
    REFUSED = 4
    """It would not be safe, so nothing was done."""
    DECLARED = 5
    """Nothing is wrong but for records that are missing, as was declared."""
    CRITICAL = 6
    """Records are lost, or about to be; or a setting would lose or leak them."""
    CANCELLED = 7
    """It was taken back on the way."""
    INTERRUPTED = 130
    """By Ctrl-C."""

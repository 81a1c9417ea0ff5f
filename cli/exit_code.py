"""The exit codes, one scheme for all commands."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a command.

    Codes from 4 on exist only where a program must tell them apart; a scheduler may treat all but 0 as trouble.
    """

    GOOD = 0
    """Done, and nothing was found; notes do not count."""
    FINDINGS = 1
    """Something needs attention, or not everything was done."""
    USAGE = 2
    """The command line was wrong, or a file that it names; nothing was asked of others."""
    UNKNOWN = 3
    """It could not be found out, or not be done: another process did not answer, or refused. One line on stderr names
    it."""
    REFUSED = 4
    """It would not be safe, so nothing was done."""
    DECLARED = 5
    """Nothing is wrong except that declared records are missing."""
    CRITICAL = 6
    """Records are lost, or about to be; or a setting would lose or leak them."""
    CANCELLED = 7
    """It was cancelled before its end."""
    INTERRUPTED = 130
    """It was interrupted by Ctrl-C."""

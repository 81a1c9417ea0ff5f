"""Reasons to doubt that a topic is the one that was read before, and whole."""

from enum import StrEnum


class TopicDoubt(StrEnum):
    """A reason to conclude nothing from what the topic does not tell."""

    BEGAN_ANEW = "began_anew"
    SHORTER = "shorter"
    GAP = "gap"
    UNREADABLE = "unreadable"

"""Decides when an upload starts, and whether bytes go by link or inline: group commit and link policy. Sans-IO."""

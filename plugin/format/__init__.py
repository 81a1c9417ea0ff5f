"""The bytes and the keys of what is stored. Sans-IO."""

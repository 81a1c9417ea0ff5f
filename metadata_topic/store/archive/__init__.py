"""What is known of the archive's objects.

- `archive_store`: by the metadata topic
- `archive_recovery`: by the objects alone
"""

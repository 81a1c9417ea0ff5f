"""Merges combined segments into archive objects of one partition each, and finds records in them.

In the order in which data meets them:

- `archiving`: starts it once its store answers
- `archived_topics`: which logs, and whose objects
- `archive_plan`: which range is next
- `archive_task`: RLMArchiveTask: makes an object of it
- `archive_care`: deletes, publishes again, finds orphans
- `stored_runs`: finds older batches for links
"""

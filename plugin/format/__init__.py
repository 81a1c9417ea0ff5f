"""The bytes and the keys of what is stored. Sans-IO.

In the order in which data meets them:

- `object_keys`, `archive_object_id`, `bucket_id`: where an object is
- `combined_segment`: header, batches, footer; `entry_columns` has the entries, `entry_column_batches` those of many
- `adoption_note`: records that lie in gateways' objects
- `archive_object`: one partition's batches, in the same format
"""

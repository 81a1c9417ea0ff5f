"""A bucket for each zone: `buckets` plans them, `bucket_loading` opens them, `zoned_storage` is one store of all."""

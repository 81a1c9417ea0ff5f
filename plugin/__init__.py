"""Remote storage for combined segments.

In the order in which data meets them:

- `remote_wal_storage_manager`: the seam (KIP-1176); `segment_metadata` has its values, `errors` what can go wrong
- `loading`: finds the backend by its class name, which operators write into settings: `s3`, `s3_express`, `gcs`,
  `azure_blob`, `local_directory`
- `object_wal_storage_manager`: what they share: bytes and keys by `format`, requests by `clients`
- `archive_storage`, `blob_storage`: archive objects, and all that is no segment; `router_object_id` names gateways'
- `adopted_records`: batches that a segment names where a gateway stored them
- `zones`, `wrappers`: a bucket for each zone; guards around a backend
- `store_loop`: the event loop of all requests; `hot_path` has what is cheap there
- `prices`: what requests and bytes cost; `inline_reason`: why bytes have no link
- `text_settings`: settings as properties files have them
- `durable_files`, `wall_clock`: the disk and the time of this host
"""

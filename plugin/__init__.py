"""Remote storage for combined segments: the seam `RemoteWalStorageManager`, the backends, and what stands around one.

`format` holds bytes and keys, `clients` the requests to stores, `zones` a bucket for each zone. Backends stay where
their class names, which operators write into settings, say: `s3`, `s3_express`, `gcs`, `azure_blob`, `local_directory`.
"""

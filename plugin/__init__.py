"""Remote storage for combined segments: the seam `RemoteWalStorageManager`, the backends, and wrappers around them.

`format` has bytes and keys, `clients` the requests to stores, `zones` a bucket for each zone. Backends stay at the
places of their class names, which operators write into settings: `s3`, `s3_express`, `gcs`, `azure_blob`,
`local_directory`.
"""

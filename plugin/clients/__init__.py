"""Requests to object stores.

In the order in which data meets them:

- `backend_settings`: a backend's settings, checked
- `object_store`: the few requests that a store must answer
- `object_requests`: retries them within a deadline, and counts
- `s3_direct`: PUT and GET on the event loop, by `s3_route`, `loop_connections`, `dialling` and `http_messages`;
  `s3_errors` translates boto3's errors
- `obstore_store`: the other clouds; `response_errors` translates their answers
"""

"""Storage managers around another one: `guarded_storage` while it is away, and within a ceiling of requests;
`adopting_storage` for records in gateways' objects.
"""

"""Storage managers around another one: `guarded_storage` while it is away, `adopting_storage` for records in gateways'
objects; `request_ceiling` bounds requests.
"""

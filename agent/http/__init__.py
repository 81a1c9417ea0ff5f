"""The agent's HTTP endpoint.

In the order in which data meets them:

- `http_access`: who may ask
- `http_server`, `http_endpoint`: connections, and pages
- `status`, `status_page`: what pages say
- `http_asking`, `fleet_pages`: ask other agents' endpoints, one or all
"""

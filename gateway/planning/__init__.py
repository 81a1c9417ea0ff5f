"""Plans the listeners and ports through which clients stay in their zone.

In the order in which data meets them:

- `running_plan`: brokers and zones of a cluster
- `planned_ports`: ports that stay as zones come and go
- `plan`, `front`: each broker's lines, with zones or one agent in front
"""

"""Plans the listeners and ports through which clients stay in their zone.

In the order in which data meets them:

- `planned_ports`: ports that stay as zones come and go
- `plan`: what a cluster has already, and each broker's lines; `front`: those with one agent in front
"""

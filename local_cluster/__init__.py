"""A real Kafka cluster on this machine.

In the order in which a start meets them:

- `layout`: directories, ids and ports
- `kafka_distribution`: what is fetched once
- `broker_config`, `security`, `object_store`, `zones`: its configuration
- `processes`, `node_processes`: starts and ends what runs
- `cluster`: all of it; `polling` waits for it
- `cluster_admin`, `kafka_tools`, `agent_metrics`: change, judge and observe it
- `workload`: numbered records, and what became of each
"""

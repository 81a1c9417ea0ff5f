"""Finds settings that would lose or leak data.

In the order in which data meets them:

- `gathering`: gets the `facts`, by `cluster_questions`, `host_questions` and `store_probe`
- `diagnosis`: runs all checks, each a pure function: `file_checks`, `host_checks`, `cluster_checks`, `store_checks`,
  `retention_checks`, `gateway_checks`
- `findings`: what they return
- `restart_questions`, `before_restart`: whether one broker may be restarted now
"""

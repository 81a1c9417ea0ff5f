"""The agent's own metrics, beside those of other packages.

In the order in which data meets them:

- `loop_times`, `store_times`: whether loops and store work
- `topic_metrics`, `savings`: bytes by topic, and dollars
- `paused`, `alarms`: what is paused or needs a look
- `usage`: published for reports
- `agent_metrics`, `metrics_doc`: all of it for Prometheus, and for readers
"""

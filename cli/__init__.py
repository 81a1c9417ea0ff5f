"""The command `remote-wal`.

In the order in which a call meets them:

- `start`: starts an agent at once (`agent_start`), and all else through `main`; `spark_submit` is its script for Spark
- `standard_output`, `log_lines`, `progress`: what is printed where
- `option_groups`, `option_needs`, `extras`: how commands are declared and checked
- `connection`: the options that lead to a cluster
- `fleet`, `costs`, `recovery`, `takeover`, `local`: a module for each command
- `tables`, `exit_code`: what people and programs get
"""

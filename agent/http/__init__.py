"""The agent's HTTP endpoint: its pages, who may read them, and the status page for people."""

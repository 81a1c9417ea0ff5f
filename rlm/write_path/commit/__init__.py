"""When an upload starts, and which way bytes should travel, sans-IO: group commit and link policy."""

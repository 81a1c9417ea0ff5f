"""__remote_wal_topic_settings: what topics have switched on, and requests for tails."""

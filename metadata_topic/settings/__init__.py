"""__remote_wal_topic_settings: the settings of topics, and requests for tails."""

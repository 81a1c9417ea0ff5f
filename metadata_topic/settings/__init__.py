"""`__remote_wal_topic_settings`: settings of topics, and what agents say of themselves.

In the order in which data meets them:

- `setting_keys`, `patterns`: keys as operators know them, and names that they may choose
- `topic_settings`, `settings_records`: values of each kind
- `settings_table`: all values, by kind and name
- `settings_topic`: reads and writes the topic, and reads its log where no broker lives
- `settings_memory`: what it said, if it is lost
- `wal_retention`: how long objects are kept, by all of these
"""

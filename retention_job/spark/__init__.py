"""The job's use of Spark.

- `session`: a session, and the jars of the Kafka connector
- `file_system`: small files, wherever Spark can write
- `joins`: few rows with many
"""

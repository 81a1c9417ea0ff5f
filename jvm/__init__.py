"""Java for what runs in it, Kafka and Spark.

- `java`: finds one
- `ivy`: fetches jars, with the Ivy that PySpark brings along
"""

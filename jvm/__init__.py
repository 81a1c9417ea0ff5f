"""Java for what runs in it, Kafka and Spark: find one, and fetch jars with the Ivy that PySpark brings along."""

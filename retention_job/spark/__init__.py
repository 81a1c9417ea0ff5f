"""The job's use of Spark: a session, the Kafka connector's jars, small files, joins of few rows with many."""

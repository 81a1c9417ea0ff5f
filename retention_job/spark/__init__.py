"""What the job needs of Spark: a session, the Kafka connector's jars, small files, joins of few rows with many."""

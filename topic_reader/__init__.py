"""Reads topics from object storage alone, while no broker runs: in Python, and as a data source of Spark.

`sources` says what is stored, `stored_log` reads one partition's batches, `isolation` leaves out aborted transactions,
`read` decodes for Python, `spark_source` for Spark.
"""

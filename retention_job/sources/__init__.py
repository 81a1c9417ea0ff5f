"""Reads the cluster by the admin client, topics by Spark's connector, and stores by listing or inventory; turns the
topics' records into rows.
"""

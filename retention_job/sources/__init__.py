"""What the job reads: the cluster by the admin client, topics by Spark's connector, stores by listing or inventory; and
how the topics' records become rows.
"""

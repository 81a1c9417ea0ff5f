"""The PySpark job: is everything retained that must be, is nothing kept that need not be, and what does it cost.

`sources` read, `history` puts together what they say, `findings` judge it, `run` is the whole job.
"""

"""Durable acknowledgement: a Produce answer is held until its records are in object storage and published."""

"""A real Kafka cluster on this machine:

its layout, processes and faults, a ledger of acknowledged records, stand-ins for object stores, and Kafka's own tools
as judges.
"""

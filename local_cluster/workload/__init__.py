"""Numbered records, the account of each record's outcome, and the comparison of replicas byte by byte."""

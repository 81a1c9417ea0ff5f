"""Requests to object stores: attempts, retries within a deadline, and the clients that make them."""

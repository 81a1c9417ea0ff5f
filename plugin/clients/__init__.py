"""Requests to object stores: attempts, trying again within a deadline, and the clients that make them."""

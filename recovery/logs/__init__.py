"""Makes logs from objects: what makes them up, how it is read, and files as Kafka would have written them."""

"""What is known of objects, from the topic, their own footers and agents' snapshots; and rebuilding the topic."""

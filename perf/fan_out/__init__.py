"""One real agent beside one real broker, among played ones."""

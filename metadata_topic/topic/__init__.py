"""The topic itself: made, followed, published to, doubted; and the clients for it."""

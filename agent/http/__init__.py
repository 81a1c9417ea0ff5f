"""What the agent tells over HTTP, who may ask it, and the page that a person opens."""

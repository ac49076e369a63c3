"""Models, and the memories that they read from."""

"""What runs plans: the native engine, and the Python that surrounds its waits."""

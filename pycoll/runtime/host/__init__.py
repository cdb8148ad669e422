"""Arrays in the host's memory: what runs their plans, and where it is."""

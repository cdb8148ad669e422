"""What pycoll asks of other libraries where they are there."""

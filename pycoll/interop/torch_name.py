"""What torch calls the backend, and of whose tensors it takes calls."""

NAME = "pycoll"
DEVICES = ("cpu", "cuda")

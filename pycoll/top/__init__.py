"""Top: the jobs that run on this machine, looked at from outside; `pycoll top` shows it."""

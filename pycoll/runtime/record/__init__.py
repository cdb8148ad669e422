"""Records: what a process's communicators have done last, in memory and in files."""

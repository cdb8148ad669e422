"""The bindings: one function per function of ``native/pycoll.h``."""

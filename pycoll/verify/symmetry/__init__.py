"""Prove the Programs of all ranks by those of a few, where the ranks do the same up to a group."""

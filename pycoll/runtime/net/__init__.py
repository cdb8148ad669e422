"""Ranks of other hosts: by what they are reached, and the connections to them."""

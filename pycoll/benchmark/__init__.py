"""Timing collectives: what is called, how it is timed and checked, against whom, and on what.

`pycoll bench` and `pycoll tune` are command lines over this package; the questions in ``bench/``
and `pycoll.overlap` measure by it, too.
"""

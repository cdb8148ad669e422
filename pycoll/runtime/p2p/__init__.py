"""Messages between two ranks, which no Program sends."""

"""What a checked call is looked at by: checksums, a second run, and the hop that a flip came by."""

"""Arrays of any library, as calls see them: one family each; `families.look` is the door."""

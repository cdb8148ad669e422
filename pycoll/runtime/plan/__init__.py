"""From a call, as a user makes it, to a plan that is proved, bound and kept."""

"""The store: the verbs of the domain, each for many commands at once."""

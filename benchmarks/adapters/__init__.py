"""One small adapter per system; each runs as a process of its own, in its own environment."""

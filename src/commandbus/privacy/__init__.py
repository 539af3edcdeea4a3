"""Privacy: what is never shown."""

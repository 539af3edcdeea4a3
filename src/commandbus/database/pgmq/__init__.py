"""PGMQ: installing it, calling it, and waking up for it."""

"""Troubleshooting: what failed for good, by cause, and what an operator does about it."""

"""Limits of execution: how many commands run at once and how often they start, over all workers."""

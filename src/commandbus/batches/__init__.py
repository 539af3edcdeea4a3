"""Batches: many commands created together, counted exactly, ending once."""

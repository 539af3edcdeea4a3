"""Loads: batches of any size, in checkpoints that resume."""

"""Upkeep: the doctor and retention."""

"""Attacks: what a caller tries that it must not do."""

"""Attacks: what a caller, a token or a forged request must not be able to do."""

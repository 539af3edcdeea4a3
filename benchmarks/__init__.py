"""Benchmarks: commandbus beside the floor that it stands on, in one run on one machine."""

"""Handlers without a bus: `commandbus.Handlers` gathers them, a bus includes them."""

"""`python -m commandbus`: the same as the program `commandbus`."""

from __future__ import annotations

from commandbus.cli.core import main

main()

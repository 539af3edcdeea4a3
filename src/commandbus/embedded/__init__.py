"""A private PostgreSQL server for development and single-node use, run from plain binaries.

Reading order: `postgres` (what a caller sees, and the list of steps), `server` (launch, wait,
stop), `cluster` (initdb, passwords, settings), `folder` (the data folder and its locks),
`processes` (who is alive), `account` (who the server runs as), `binaries` (where it comes from).

Linux and macOS only: the locks are `flock` and the server is steered by signals.
"""

from __future__ import annotations

from commandbus.embedded.binaries import Binaries, find_binaries
from commandbus.embedded.postgres import EmbeddedPostgres

__all__ = ["Binaries", "EmbeddedPostgres", "find_binaries"]

"""Starts a PostgreSQL for this example, and prints how to use it."""

import shlex
import sys
import tempfile
from pathlib import Path

from commandbus.embedded import EmbeddedPostgres


def start(folder: Path) -> EmbeddedPostgres:
    server = EmbeddedPostgres(folder, stop_on_exit=False)  # it is for the programs that come next
    server.start()
    return server


if __name__ == "__main__":
    place = Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.gettempdir()) / "django-example"
    print(f"export DATABASE_DSN={shlex.quote(start(place).dsn)}")

"""The fixtures of tests/sql serve here too."""

from tests.sql.conftest import db, session

__all__ = ["db", "session"]

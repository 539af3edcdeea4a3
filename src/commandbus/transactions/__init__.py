"""Transactions of the application, for its handlers: `transactional=SqlAlchemy(sessionmaker)`.

What a handler writes in such a transaction and the completion of its command are one commit. Any
function will do that gives a context manager which yields a connection or a session and whose end
commits; these are the ones for SQLAlchemy, SQLModel and asyncpg.
"""

from commandbus.transactions.asyncpg_pool import Asyncpg
from commandbus.transactions.provider import TransactionProvider
from commandbus.transactions.sqlalchemy_sessions import SqlAlchemy

__all__ = ["Asyncpg", "SqlAlchemy", "TransactionProvider"]

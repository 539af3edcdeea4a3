"""Access: who calls, and with which token."""

from commandbus.access.model import ApiToken, Caller, NewToken, Scope, StoredToken
from commandbus.access.tokens import Tokens

__all__ = ["ApiToken", "Caller", "NewToken", "Scope", "StoredToken", "Tokens"]

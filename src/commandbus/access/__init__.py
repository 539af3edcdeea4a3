"""Access: who calls, and with which token."""

from commandbus.access.model import ApiToken, Caller, NewToken, Scope, StoredToken
from commandbus.access.tokens import Tokens
from commandbus.access.visibility import viewer_of
from commandbus.models import Viewer

__all__ = [
    "ApiToken",
    "Caller",
    "NewToken",
    "Scope",
    "StoredToken",
    "Tokens",
    "Viewer",
    "viewer_of",
]

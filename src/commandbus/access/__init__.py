"""Access: who calls, with which scopes, and with which token."""

from commandbus.access.model import ApiToken, Caller, NewToken, Scope

__all__ = ["ApiToken", "Caller", "NewToken", "Scope"]

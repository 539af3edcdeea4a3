"""Tokens that end while the service runs: who must know of it at once.

Other processes notice when they ask the database again, after `token_cache_seconds` at the latest.
"""

from __future__ import annotations

from collections.abc import Callable

#: Called with the id of a token that was revoked or rotated by a request to this process.
OnRevoked = Callable[[str], None]


class Revocations:
    """Tells those who asked for it that a token has ended."""

    def __init__(self) -> None:
        self._listeners: list[OnRevoked] = []

    def subscribe(self, on_revoked: OnRevoked) -> None:
        """Call this for each token that ends."""
        self._listeners.append(on_revoked)

    def tell(self, token_id: str) -> None:
        """A token has ended, or ends earlier than it was known to."""
        for listener in self._listeners:
            listener(token_id)

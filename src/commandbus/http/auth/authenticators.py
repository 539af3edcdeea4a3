"""Authenticators turn the headers of a request into a Caller, or refuse it."""

from __future__ import annotations

from typing import Protocol

from starlette.datastructures import Headers

from commandbus.access.model import EVERYTHING, Caller


class NotAuthenticated(Exception):  # noqa: N818  (a refusal, not an error)
    """No valid credentials. It does not say why: the response is the same for all reasons."""


class Authenticator(Protocol):
    """Finds out who the caller is."""

    async def authenticate(self, headers: Headers) -> Caller:
        """The caller, or NotAuthenticated."""


def bearer_of(headers: Headers) -> str:
    """The credentials after `Bearer`. Those in the address of a request are never read."""
    values = headers.getlist("authorization")
    if len(values) != 1:
        raise NotAuthenticated
    scheme, _, credentials = values[0].partition(" ")
    if scheme.lower() != "bearer" or not credentials or len(credentials) > 8_192:
        raise NotAuthenticated
    return credentials.strip()


_OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")


class NoAuth:
    """For development: every process on this machine is the same caller, who may do everything.

    Web pages of other sites could send requests through a browser on this machine. So requests
    from another site, or to a host name that is not this machine's, are refused.
    """

    def __init__(self, user_id: str = "developer") -> None:
        self._caller = Caller(user_id, EVERYTHING)

    async def authenticate(self, headers: Headers) -> Caller:
        """The one caller; NotAuthenticated for a request from another site."""
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        # A browser names the page that sent a form: only one of ours may.
        origin = headers.get("origin")
        is_foreign = (origin is not None and origin.lower() != f"http://{host.lower()}") or (
            headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
        )
        if name.lower() not in _OWN_NAMES or is_foreign:
            raise NotAuthenticated
        return self._caller

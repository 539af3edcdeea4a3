"""HttpSettings: one frozen value, each field documented once; from arguments or the environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from commandbus.errors import InvalidSettingError
from commandbus.settings import check_number, read_environment

#: How a caller proves who it is.
AUTH_KINDS = ("token", "jwt", "none")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How the service behaves. `from_env` reads COMMANDBUS_HTTP_<FIELD> for each field."""

    #: The address to listen on.
    host: str = "127.0.0.1"
    #: The port; 0: any that is free.
    port: int = 8080
    #: "token" (API tokens), "jwt", or "none" (development; only on a loopback address).
    auth: str = "token"
    #: Bytes that the body of a request may have.
    max_body_bytes: int = 1024 * 1024
    #: Bytes that all headers of a request may have, and how many there may be.
    max_header_bytes: int = 16 * 1024
    max_header_count: int = 100
    #: Objects and arrays inside one another in a body.
    max_json_depth: int = 40
    #: A request must be there, whole, within so many seconds.
    receive_timeout_seconds: float = 10.0
    #: Requests at once; more are answered with 503.
    max_concurrency: int = 200
    #: Of those, how many may be waiting (long polls and event streams).
    max_long_polls: int = 100
    #: The longest wait that `Prefer: wait=N` gets.
    max_wait_seconds: float = 30.0
    #: How long an event stream is kept; its client comes again by itself.
    max_stream_seconds: float = 300.0
    #: How long an idle connection is kept.
    keep_alive_seconds: float = 5.0
    #: How long a stop waits for requests that are being answered.
    shutdown_grace_seconds: float = 10.0
    #: Failed authentications of one address in a minute, before it gets 429.
    max_auth_failures: int = 10
    #: How long a proved token is believed without asking again: a revoked one lives so much longer.
    token_cache_seconds: float = 5.0
    #: Addresses of proxies whose X-Forwarded-* headers are believed, separated by commas.
    trusted_proxies: str = ""
    #: Whether /metrics needs no token.
    metrics_public: bool = False
    #: How long the figures of /metrics are kept before the database is asked again.
    metrics_cache_seconds: float = 5.0
    #: The secret (HS256) or the public key in PEM (RS256, ES256) that JWTs are checked with.
    jwt_key: str = field(default="", repr=False)
    #: HS256, RS256 or ES256; no other is accepted.
    jwt_algorithm: str = "HS256"
    #: What `aud` and `iss` of a JWT must be.
    jwt_audience: str = "commandbus"
    jwt_issuer: str = ""

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            is_whole = type(_DEFAULTS[name]) is int
            check_number(getattr(self, name), name, low, high, is_whole=is_whole)
        if self.auth not in AUTH_KINDS:
            raise InvalidSettingError(f"auth is {self.auth!r}; use {', '.join(AUTH_KINDS)}")
        if self.jwt_algorithm not in {"HS256", "RS256", "ES256"}:
            raise InvalidSettingError(
                f"jwt_algorithm is {self.jwt_algorithm!r}; use HS256, RS256 or ES256"
            )
        if self.max_long_polls >= self.max_concurrency:
            raise InvalidSettingError(
                "max_long_polls must be less than max_concurrency, or waiting requests could "
                "take every place"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> HttpSettings:
        """Read COMMANDBUS_HTTP_<FIELD> for every field; arguments win over the environment."""
        return replace(cls(**read_environment(cls, "COMMANDBUS_HTTP_", environ)), **overrides)


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_DEFAULTS = {spec.name: spec.default for spec in fields(HttpSettings)}
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("port", 0, 65_535),
    ("max_body_bytes", 1_024, 64 * 1024 * 1024),
    ("max_header_bytes", 1_024, 1024 * 1024),
    ("max_header_count", 10, 10_000),
    ("max_json_depth", 5, 200),
    ("receive_timeout_seconds", 0.05, 600),
    ("max_concurrency", 2, 100_000),
    ("max_long_polls", 1, 100_000),
    ("max_wait_seconds", 0, 300),
    ("max_stream_seconds", 1, 86_400),
    ("keep_alive_seconds", 0.1, 600),
    ("shutdown_grace_seconds", 0, 600),
    ("max_auth_failures", 1, 1_000_000),
    ("token_cache_seconds", 0, 5),
    ("metrics_cache_seconds", 0, 600),
)

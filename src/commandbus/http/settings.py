"""HttpSettings: one frozen value, each field documented once; from arguments or the environment."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import ClassVar

from commandbus.errors import InvalidSettingError
from commandbus.settings import EnvironmentSettings

#: How callers are authenticated.
AUTH_KINDS = ("token", "jwt", "none")
#: Colours of the name of a deployment: each can be read in both themes.
DEPLOYMENT_COLOURS = ("grey", "blue", "green", "amber", "red", "violet")


@dataclass(frozen=True, slots=True)
class HttpSettings(EnvironmentSettings):
    """How the service behaves. `from_env` reads COMMANDBUS_HTTP_<FIELD> for each field."""

    PREFIX: ClassVar[str] = "COMMANDBUS_HTTP_"

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
    #: Objects and arrays inside one another in a body, and values of all kinds in it.
    max_json_depth: int = 40
    max_json_values: int = 100_000
    #: Seconds within which the headers of a request must have arrived, and then its body.
    receive_timeout_seconds: float = 10.0
    #: Requests at once; more get 503.
    max_concurrency: int = 200
    #: Of those, how many may be waiting (long polls, event streams and exports).
    max_long_polls: int = 100
    #: Pages of the console that may be live at once; they are not counted in max_concurrency.
    max_console_streams: int = 400
    #: Bodies that are being received at once.
    max_bodies: int = 64
    #: How much of max_concurrency, max_long_polls and max_bodies one user may have.
    user_share: float = 0.25
    #: How much of what its user may have (places, and the three numbers below) one token may have.
    token_share: float = 0.5
    #: Requests of one user in a minute.
    max_user_requests: int = 600
    #: Bytes of bodies of one user in a minute.
    max_user_body_bytes: int = 64 * 1024 * 1024
    #: Commands of one user in a minute that it sends outside governed batches.
    max_user_commands: int = 20_000
    #: Requests of one address in a minute that come without valid credentials.
    max_address_requests: int = 300
    #: Connections at once; for more, those that wait or were refused are closed.
    max_connections: int = 2_000
    #: Seconds within which a client must take a piece of a response.
    send_timeout_seconds: float = 30.0
    #: The longest wait that `Prefer: wait=N` gets.
    max_wait_seconds: float = 30.0
    #: The longest duration of an event stream; its client reconnects by itself.
    max_stream_seconds: float = 300.0
    #: How long an idle connection is kept.
    keep_alive_seconds: float = 5.0
    #: How long a stop waits for requests that are being served.
    shutdown_grace_seconds: float = 10.0
    #: Wrong credentials of one address in a minute; more get 429. Valid ones are always accepted.
    max_auth_failures: int = 10
    #: How long a checked token is accepted without asking the database again; a revoked token is
    #: accepted for at most that long.
    token_cache_seconds: float = 5.0
    #: Addresses of proxies whose X-Forwarded-* headers are believed, separated by commas.
    trusted_proxies: str = ""
    #: What this installation is called, on every page of the console: "PRODUCTION - eu".
    deployment_name: str = ""
    #: The colour of that name: grey, blue, green, amber, red or violet.
    deployment_colour: str = "grey"
    #: Whether /metrics needs no token.
    metrics_public: bool = False
    #: How long the figures of /metrics are kept before the database is asked again.
    metrics_cache_seconds: float = 5.0
    #: The secret (HS256) or the public key in PEM (RS256, ES256) that JWTs are checked with.
    jwt_key: str = field(default="", repr=False)
    #: The key set (JWKS) of the issuer instead, for RS256 and ES256: a path, or an https address.
    jwt_jwks: str = ""
    #: HS256, RS256 or ES256; no other is accepted.
    jwt_algorithm: str = "HS256"
    #: What `aud` and `iss` of a JWT must be.
    jwt_audience: str = "commandbus"
    jwt_issuer: str = ""

    def __post_init__(self) -> None:
        self.check_ranges(_RANGES)
        if self.auth not in AUTH_KINDS:
            raise InvalidSettingError(f"auth is {self.auth!r}; use {', '.join(AUTH_KINDS)}")
        if self.jwt_algorithm not in {"HS256", "RS256", "ES256"}:
            raise InvalidSettingError(
                f"jwt_algorithm is {self.jwt_algorithm!r}; use HS256, RS256 or ES256"
            )
        if self.deployment_colour not in DEPLOYMENT_COLOURS:
            raise InvalidSettingError(
                f"deployment_colour is {self.deployment_colour!r}; use "
                f"{', '.join(DEPLOYMENT_COLOURS)}"
            )
        if len(self.deployment_name) > 60:
            raise InvalidSettingError("deployment_name has more than 60 characters; use fewer")
        if self.max_long_polls >= self.max_concurrency:
            raise InvalidSettingError(
                "max_long_polls must be less than max_concurrency, or waiting requests could "
                "take every place"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65_535),
    "max_body_bytes": (1_024, 64 * 1024 * 1024),
    "max_header_bytes": (1_024, 1024 * 1024),
    "max_header_count": (10, 10_000),
    "max_json_depth": (5, 200),
    "max_json_values": (100, 10_000_000),
    "receive_timeout_seconds": (0.05, 600),
    "max_concurrency": (2, 100_000),
    "max_long_polls": (1, 100_000),
    "max_console_streams": (1, 100_000),
    "max_bodies": (1, 100_000),
    "user_share": (0.001, 1),
    "token_share": (0.001, 1),
    "max_user_requests": (1, 100_000_000),
    "max_user_body_bytes": (1_024, 1024**4),
    "max_user_commands": (1, 1_000_000_000),
    "max_address_requests": (1, 100_000_000),
    "max_connections": (2, 100_000),
    "send_timeout_seconds": (0.05, 600),
    "max_wait_seconds": (0, 300),
    "max_stream_seconds": (1, 86_400),
    "keep_alive_seconds": (0.1, 600),
    "shutdown_grace_seconds": (0, 600),
    "max_auth_failures": (1, 1_000_000),
    "token_cache_seconds": (0, 5),
    "metrics_cache_seconds": (0, 600),
}

"""JSON Web Tokens: an option beside API tokens. PyJWT is imported only if this is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

from commandbus.access.model import Caller, Scope
from commandbus.errors import InvalidInputError, InvalidSettingError
from commandbus.http.auth.authenticators import NotAuthenticated, bearer_of
from commandbus.http.settings import HttpSettings
from commandbus.names import check_domain, check_text

#: Bytes that an HS256 key needs at least (RFC 7518 §3.2).
MIN_SECRET_BYTES = 32
#: Seconds that two clocks may differ.
LEEWAY_SECONDS = 30


class JwtAuth:
    """Checks `Authorization: Bearer <JWT>` with one key and one algorithm.

    Claims: `sub` (the user), `exp`, `aud`, `iss` if one is configured, `scope` (names separated by
    spaces, or a list), `domains` (a list; absent or "*": all of them).
    """

    def __init__(
        self, key: str, *, algorithm: str = "HS256", audience: str, issuer: str = ""
    ) -> None:
        self._jwt: Any = _import_jwt()
        if algorithm not in {"HS256", "RS256", "ES256"}:
            raise InvalidSettingError(f"no JWT algorithm {algorithm!r}; use HS256, RS256 or ES256")
        if not audience:
            raise InvalidSettingError("jwt_audience is empty; say what `aud` must be")
        self._key = self._checked(key, algorithm)
        self._algorithm = algorithm
        self._audience = audience
        self._issuer = issuer or None

    @classmethod
    def of(cls, settings: HttpSettings) -> JwtAuth:
        """From the settings."""
        return cls(
            settings.jwt_key,
            algorithm=settings.jwt_algorithm,
            audience=settings.jwt_audience,
            issuer=settings.jwt_issuer,
        )

    def _checked(self, key: str, algorithm: str) -> Any:
        if not key:
            raise InvalidSettingError("jwt_key is empty; set COMMANDBUS_HTTP_JWT_KEY")
        if algorithm == "HS256":
            if len(key.encode()) < MIN_SECRET_BYTES:
                raise InvalidSettingError(
                    f"jwt_key is too short for HS256; use {MIN_SECRET_BYTES} random bytes at least"
                )
            return key
        try:
            return self._jwt.get_algorithm_by_name(algorithm).prepare_key(key)
        except NotImplementedError:
            raise InvalidSettingError(
                f"{algorithm} needs the package cryptography; install it, or use HS256"
            ) from None
        except Exception:  # noqa: BLE001  (whatever it is, it may quote the key)
            raise InvalidSettingError(
                f"jwt_key is no public key in PEM that {algorithm} can use"
            ) from None

    async def authenticate(self, headers: Headers) -> Caller:
        """Check a JWT. The settings say which algorithm, never the token: `none` is refused."""
        try:
            claims = self._jwt.decode(
                bearer_of(headers),
                self._key,
                algorithms=[self._algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "sub", "aud"]},
            )
            return _caller_of(claims)
        except (self._jwt.PyJWTError, InvalidInputError, TypeError, ValueError):
            raise NotAuthenticated from None


def _caller_of(claims: Mapping[str, Any]) -> Caller:
    scope = claims.get("scope", "")
    names = scope.split() if isinstance(scope, str) else list(scope)
    known = set(Scope)
    # An issuer may name scopes of other services too; those are left out.
    scopes = frozenset(Scope(name) for name in names if name in known)
    domains = claims.get("domains")
    if domains is None or domains == "*":
        reach = None
    elif isinstance(domains, list):
        reach = frozenset(check_domain(domain) for domain in domains)
    else:
        raise NotAuthenticated
    return Caller(check_text(claims["sub"], "sub", max_length=200), scopes, reach)


def _import_jwt() -> Any:
    try:
        import jwt  # noqa: PLC0415  (an extra of its own)
    except ModuleNotFoundError:
        raise InvalidSettingError("JSON Web Tokens need PyJWT; install commandbus[jwt]") from None
    return jwt

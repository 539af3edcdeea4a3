"""JSON Web Tokens: an option beside API tokens. PyJWT is imported only if this is used."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers

from commandbus.access.model import Caller, Scope
from commandbus.access.users import check_new_user
from commandbus.errors import InvalidInputError, InvalidSettingError
from commandbus.extras import extra
from commandbus.http.auth.authenticators import NotAuthenticated, bearer_of
from commandbus.http.auth.fetching import Address
from commandbus.http.auth.key_sets import (
    Keys,
    KeySetAddress,
    KeySetFile,
    KeySetReader,
    OneKey,
    check_public_key,
)
from commandbus.http.auth.strict_json import read_object
from commandbus.http.settings import HttpSettings
from commandbus.names import check_domain

#: Bytes that an HS256 key needs at least (RFC 7518 §3.2).
MIN_SECRET_BYTES = 32
#: Seconds that two clocks may differ.
LEEWAY_SECONDS = 30
#: Tokens of other kinds, for example those that end a session, are signed with the same keys.
_KINDS = frozenset({"jwt", "at+jwt"})

_log = logging.getLogger("commandbus.http")


class JwtAuth:
    """Checks `Authorization: Bearer <JWT>` with one algorithm, and one key or a key set.

    `jwks` is the path or the https address of a key set (RS256 and ES256). Claims: `sub` (the
    user), `exp`, `aud`, `iss` if one is configured, `scope` (names separated by spaces, or a list),
    `domains` (a list; absent or "*": all of them). `nbf` and `iat` count if they are there.
    """

    def __init__(
        self,
        key: str = "",
        *,
        jwks: str = "",
        algorithm: str = "HS256",
        audience: str,
        issuer: str = "",
    ) -> None:
        self._jwt: Any = _import_jwt()
        if algorithm not in {"HS256", "RS256", "ES256"}:
            raise InvalidSettingError(f"no JWT algorithm {algorithm!r}; use HS256, RS256 or ES256")
        if not audience:
            raise InvalidSettingError("jwt_audience is empty; say what `aud` must be")
        self._algorithm = algorithm
        self._audience = audience
        self._issuer = issuer or None
        self._keys = self._keys_of(key, jwks)

    @classmethod
    def of(cls, settings: HttpSettings) -> JwtAuth:
        """From the settings."""
        return cls(
            settings.jwt_key,
            jwks=settings.jwt_jwks,
            algorithm=settings.jwt_algorithm,
            audience=settings.jwt_audience,
            issuer=settings.jwt_issuer,
        )

    # -- keys

    def _keys_of(self, key: str, jwks: str) -> Keys:
        if key and jwks:
            raise InvalidSettingError("jwt_key and jwt_jwks are both set; use one of them")
        if not jwks:
            return OneKey(self._checked(key))
        if self._algorithm == "HS256":
            raise InvalidSettingError("a key set is for RS256 or ES256; set jwt_algorithm")
        reader = KeySetReader(self._algorithm, self._library_algorithm().from_jwk)
        if jwks.lower().startswith(("http:", "https:")):
            return KeySetAddress(Address.of(jwks), reader)
        return KeySetFile(Path(jwks).expanduser(), reader)

    def _checked(self, key: str) -> Any:
        if not key:
            raise InvalidSettingError(
                "jwt_key is empty; set COMMANDBUS_HTTP_JWT_KEY or COMMANDBUS_HTTP_JWT_JWKS"
            )
        if self._algorithm == "HS256" and len(key.encode()) < MIN_SECRET_BYTES:
            raise InvalidSettingError(
                f"jwt_key is too short for HS256; use {MIN_SECRET_BYTES} random bytes at least"
            )
        try:
            prepared = self._library_algorithm().prepare_key(key)
            if self._algorithm != "HS256":
                check_public_key(prepared, self._algorithm)
        except InvalidSettingError as error:
            raise InvalidSettingError(f"jwt_key cannot be used, because {error}") from None
        except Exception:  # noqa: BLE001  (whatever it is, it may quote the key)
            kind = "secret" if self._algorithm == "HS256" else "public key in PEM"
            raise InvalidSettingError(
                f"jwt_key is no {kind} that {self._algorithm} can use"
            ) from None
        return prepared

    def _library_algorithm(self) -> Any:
        try:
            return self._jwt.get_algorithm_by_name(self._algorithm)
        except NotImplementedError:
            raise InvalidSettingError(
                f'{self._algorithm} needs cryptography: pip install "commandbus[jwt]"'
            ) from None

    # -- tokens

    async def authenticate(self, headers: Headers) -> Caller:
        """Check a JWT. The settings say which algorithm, never the token: `none` is refused."""
        text = bearer_of(headers)
        try:
            key = await self._keys.find(self._key_id(text))
            if key is None:
                raise NotAuthenticated
            found = self._jwt.decode_complete(
                text,
                key,
                algorithms=[self._algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "sub", "aud"]},
            )
            read_object(self._segment(text, 1))  # each claim once
            return _caller_of(found["payload"])
        except (self._jwt.PyJWTError, InvalidInputError, TypeError, ValueError) as error:
            # For those who have to find out why; the caller is told nothing.
            _log.debug("refused a JWT: %s", type(error).__name__)
            raise NotAuthenticated from None

    def _key_id(self, text: str) -> str | None:
        """Which key a token asks for; what else its header says of keys is never looked at."""
        header = read_object(self._segment(text, 0))
        kind = header.get("typ", "JWT")
        if (
            header.get("alg") != self._algorithm
            or "crit" in header  # something must be understood that is not
            or not isinstance(kind, str)
            or kind.lower().removeprefix("application/") not in _KINDS
        ):
            raise NotAuthenticated
        key_id = header.get("kid")
        if key_id is not None and not isinstance(key_id, str):
            raise NotAuthenticated
        return key_id

    def _segment(self, text: str, index: int) -> bytes:
        decoded: bytes = self._jwt.utils.base64url_decode(text.split(".")[index])
        return decoded


def _caller_of(claims: Mapping[str, Any]) -> Caller:
    for name in ("exp", "nbf", "iat"):
        if type(claims.get(name, 0)) not in {int, float}:  # PyJWT takes texts and booleans too
            raise NotAuthenticated
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
    return Caller(check_new_user(claims["sub"], "sub"), scopes, reach)


def _import_jwt() -> Any:
    with extra("jwt", "the authentication by JSON Web Tokens"):
        import jwt  # noqa: PLC0415  (an extra of its own)
    return jwt

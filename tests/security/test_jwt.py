"""JSON Web Tokens with real keys: RS256 and ES256, key sets in files and at addresses, and what
an attacker would write into a token.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import gc
import hashlib
import hmac
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

import commandbus.http
from commandbus import InvalidSettingError
from commandbus.access.model import Caller, Scope
from commandbus.http import HttpSettings, JwtAuth, create_app
from commandbus.http.auth import fetching, key_sets
from commandbus.http.auth.authenticators import NotAuthenticated
from commandbus.privacy.redaction import redact_text
from commandbus.testing import fake_bus
from faults.proxy import turn_loop
from tests.http_world import client_of, problem

ALGORITHMS = ("RS256", "ES256")


def private_key(algorithm: str, name: str = "a", bits: int = 2_048) -> Any:
    return made_key(algorithm, name, bits)


@cache
def made_key(algorithm: str, name: str, bits: int) -> Any:
    """Made once for each name in a run: an RSA key takes a while."""
    if algorithm == "RS256":
        return rsa.generate_private_key(65_537, bits)
    return ec.generate_private_key(ec.SECP256R1())


def pem_of(algorithm: str, name: str = "a") -> str:
    public = private_key(algorithm, name).public_key()
    return str(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def jwk_of(algorithm: str, name: str = "a", **changes: Any) -> dict[str, Any]:
    public = private_key(algorithm, name).public_key()
    found = jwt.get_algorithm_by_name(algorithm).to_jwk(public, as_dict=True)
    values = {**found, "kid": name, "use": "sig", **changes}
    return {key: value for key, value in values.items() if value is not None}


def key_set(*entries: Any) -> str:
    return json.dumps({"keys": list(entries)})


def claims(**changes: Any) -> dict[str, Any]:
    values = {"sub": "ann", "aud": "commandbus", "exp": time.time() + 60, "scope": "read send"}
    return {name: value for name, value in (values | changes).items() if value is not None}


def token_of(
    algorithm: str, name: str = "a", headers: dict[str, Any] | None = None, **changes: Any
) -> str:
    headers = {"kid": name} if headers is None else headers
    return jwt.encode(claims(**changes), private_key(algorithm, name), algorithm, headers=headers)


async def ask(auth: JwtAuth, token: str) -> Caller:
    return await auth.authenticate(Headers({"Authorization": f"Bearer {token}"}))


async def accepts(auth: JwtAuth, token: str) -> bool:
    try:
        await ask(auth, token)
    except NotAuthenticated:
        return False
    return True


def auth_of(algorithm: str, **options: Any) -> JwtAuth:
    options = options or {"key": pem_of(algorithm)}
    return JwtAuth(algorithm=algorithm, audience="commandbus", **options)


def encoded(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def signed(algorithm: str, header: Any, payload: Any) -> str:
    """A token of any header and any payload, with a signature that is right."""
    text = f"{encoded(header)}.{encoded(payload)}"
    library: Any = jwt.get_algorithm_by_name(algorithm)
    return f"{text}.{encoded(library.sign(text.encode(), private_key(algorithm)))}"


# -- one key


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_token_of_the_key_proves_its_claims(algorithm: str) -> None:
    auth = auth_of(algorithm)
    caller = await ask(auth, token_of(algorithm, domains=["shop"]))
    scopes = frozenset({Scope.READ, Scope.SEND})
    assert caller == Caller("ann", scopes, frozenset({"shop"}))
    assert not await accepts(auth, token_of(algorithm, "another"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_the_service_answers_to_it(algorithm: str) -> None:
    found = HttpSettings(auth="jwt", jwt_key=pem_of(algorithm), jwt_algorithm=algorithm)
    app = create_app(fake_bus(), auth=JwtAuth.of(found), settings=found)
    async with client_of(app, token_of(algorithm)) as client:
        assert (await client.get("/api/v1/whoami")).json()["user_id"] == "ann"
    async with client_of(app, token_of(algorithm, "another")) as client:
        problem(await client.get("/api/v1/whoami"), 401, "UNAUTHENTICATED")


def as_hmac(algorithm: str) -> str:
    """The classic: the public key, which all know, as the secret of an HS256 token."""
    text = f"{encoded({'alg': 'HS256', 'typ': 'JWT'})}.{encoded(claims())}"
    key = pem_of(algorithm).encode()
    return f"{text}.{encoded(hmac.new(key, text.encode(), hashlib.sha256).digest())}"


def other_algorithm(algorithm: str) -> str:
    return token_of("ES256" if algorithm == "RS256" else "RS256")


def changed(algorithm: str) -> str:
    head, _, signature = token_of(algorithm).split(".")
    return f"{head}.{encoded(claims(sub='root'))}.{signature}"


def with_key_of_its_own(algorithm: str) -> str:
    head = {"kid": "a", "jwk": jwk_of(algorithm, "mallory"), "jku": "https://127.0.0.1:1/keys"}
    return jwt.encode(claims(), private_key(algorithm, "mallory"), algorithm, headers=head)


ATTACKS: dict[str, Callable[[str], str]] = {
    "none": lambda a: jwt.encode(claims(), "", "none"),
    "none, with the signature of another": lambda a: (
        f"{encoded({'alg': 'none'})}.{'.'.join(token_of(a).split('.')[1:])}"
    ),
    "the public key as a secret": as_hmac,
    "another algorithm": other_algorithm,
    "a longer hash": lambda a: jwt.encode(
        claims(), private_key("RS256"), "RS512", headers={"kid": "a"}
    ),
    "changed claims": changed,
    "no signature": lambda a: token_of(a).rpartition(".")[0] + ".",
    "zeros for a signature": lambda a: f"{token_of(a).rpartition('.')[0]}.{encoded(bytes(64))}",
    "a key of its own": with_key_of_its_own,
    "crit": lambda a: token_of(a, headers={"kid": "a", "crit": ["b64"], "b64": True}),
    "a logout token": lambda a: token_of(a, headers={"kid": "a", "typ": "logout+jwt"}),
    "a type that is none": lambda a: token_of(a, headers={"kid": "a", "typ": "x"}),
    "a key id that is no text": lambda a: signed(a, {"alg": a, "kid": 7}, claims()),
    "an algorithm twice": lambda a: signed(
        a, f'{{"alg":"{a}","alg":"{a}"}}'.encode(), claims()
    ),
    "a claim twice": lambda a: signed(
        a, {"alg": a}, json.dumps(claims())[:-1].encode() + b', "sub": "root"}'
    ),
    "a header that is a list": lambda a: signed(a, [], claims()),
    "claims that are a list": lambda a: signed(a, {"alg": a}, []),
    "a deep header": lambda a: f"{encoded(b'[' * 2_000 + b']' * 2_000)}.e30.e30",
    "deep claims": lambda a: signed(a, {"alg": a}, b'{"sub":' + b"[" * 2_500 + b"]" * 2_500 + b"}"),
    "not a number": lambda a: signed(a, {"alg": a}, {**claims(), "exp": float("nan")}),
    "for ever": lambda a: signed(a, {"alg": a}, {**claims(), "exp": float("inf")}),
    "a huge number": lambda a: signed(
        a, {"alg": a}, b'{"sub":"ann","aud":"commandbus","exp":' + b"9" * 5_000 + b"}"
    ),
    "a text for a time": lambda a: token_of(a, exp=str(int(time.time()) + 60)),
    "a truth for a time": lambda a: token_of(a, nbf=True),
    "expired": lambda a: token_of(a, exp=time.time() - 31),
    "not yet": lambda a: token_of(a, nbf=time.time() + 40),
    "of the future": lambda a: token_of(a, iat=time.time() + 40),
    "no end": lambda a: token_of(a, exp=None),
    "for another": lambda a: token_of(a, aud="other"),
    "for others": lambda a: token_of(a, aud=["other", "more"]),
    "for nobody": lambda a: token_of(a, aud=None),
    "of another issuer": lambda a: token_of(a, iss="https://them"),
    "no user": lambda a: token_of(a, sub=None),
    "a user that is no text": lambda a: signed(a, {"alg": a}, {**claims(), "sub": 7}),
    "a user that is empty": lambda a: token_of(a, sub=" "),
    "a user with a space behind": lambda a: token_of(a, sub="ann "),
    "a user with an invisible character": lambda a: token_of(a, sub="an\u200bn"),
    "a user with a letter of two": lambda a: token_of(a, sub="rene\u0301"),
    "scopes that are none": lambda a: token_of(a, scope=[["read"]]),
    "too long": lambda a: token_of(a, more="x" * 9_000),
    "two dots too many": lambda a: token_of(a) + "..",
    "bytes": lambda a: "é.é.é",
    "empty parts": lambda a: "..",
}  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_is_refused(algorithm: str, attack: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(key_set(jwk_of(algorithm)))
    for source in ({"key": pem_of(algorithm)}, {"jwks": str(file)}):
        auth = auth_of(algorithm, **source, issuer="https://us")
        assert await accepts(auth, token_of(algorithm, iss="https://us"))
        token = ATTACKS[attack](algorithm)
        assert not await accepts(auth, token)
        if attack != "of another issuer":
            assert not await accepts(auth_of(algorithm, **source), token)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_what_a_header_says_of_keys_is_not_looked_at(algorithm: str) -> None:
    """Some issuers write `jku` into every token: it changes nothing, and nothing is fetched."""
    head = {"kid": "a", "jku": "https://127.0.0.1:1/keys", "x5u": "https://127.0.0.1:1/"}
    assert await accepts(auth_of(algorithm), token_of(algorithm, headers=head))


@pytest.mark.parametrize("kind", ["JWT", "at+jwt", "application/at+jwt", None])
async def test_the_usual_types_are_accepted(kind: str | None) -> None:
    head = {"alg": "ES256"} | ({} if kind is None else {"typ": kind})
    assert await accepts(auth_of("ES256"), signed("ES256", head, claims()))


async def test_scopes_are_those_of_the_token_and_none_contains_the_bypass() -> None:
    auth = auth_of("ES256")
    caller = await ask(auth, token_of("ES256", scope="submit bypass-governance openid"))
    assert caller.scopes == frozenset({Scope.SUBMIT, Scope.BYPASS_GOVERNANCE})
    admin = await ask(auth, token_of("ES256", scope=["admin"]))
    assert admin.may(Scope.SUBMIT)
    assert not admin.may(Scope.BYPASS_GOVERNANCE)
    nothing = await ask(auth, token_of("ES256", scope=None, domains=[]))
    assert (nothing.scopes, nothing.domains) == (frozenset(), frozenset())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
HEADERS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("alg", "kid", "typ", "crit", "b64", "jwk", "cty"), JSON)
)
CLAIMS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("sub", "exp", "nbf", "iat", "aud", "scope", "domains"), JSON)
)


@settings(max_examples=300, deadline=None)
@given(header=HEADERS, changes=CLAIMS, keeps_algorithm=st.booleans())
def test_any_header_and_any_claims_are_a_caller_or_a_refusal(
    header: dict[str, Any], changes: dict[str, Any], keeps_algorithm: bool
) -> None:
    """Signed as they should be: even an issuer that writes nonsense causes no failure."""
    header = {**header, "alg": "ES256"} if keeps_algorithm else header
    token = signed("ES256", header, {**claims(), **changes})
    asyncio.run(accepts(auth_of("ES256"), token))


@settings(max_examples=300, deadline=None)
@given(number=st.integers(0, 1_000), letter=st.sampled_from("AZaz09-_.=+/ é"))
def test_a_token_that_was_changed_anywhere_is_refused(number: int, letter: str) -> None:
    good = token_of("ES256")
    place = number % (len(good) - 1)  # the last letter has bits without a meaning
    if good[place] != letter:
        assert not asyncio.run(accepts(auth_of("ES256"), good[:place] + letter + good[place + 1 :]))


def private_pem(algorithm: str) -> str:
    made = private_key(algorithm)
    return str(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())


def short_pem() -> str:
    public = private_key("RS256", "short", 1_024).public_key()
    return str(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def pem_of_other_curve() -> str:
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@pytest.mark.parametrize(
    ("algorithm", "key", "says"),
    [
        ("RS256", lambda: private_pem("RS256"), "private key"),
        ("ES256", lambda: private_pem("ES256"), "private key"),
        ("RS256", lambda: pem_of("ES256"), "no public key"),
        ("ES256", lambda: pem_of("RS256"), "no public key"),
        ("RS256", short_pem, "1024 bits"),
        ("ES256", pem_of_other_curve, "curve|no public key"),
        ("HS256", lambda: pem_of("RS256"), "no secret"),
        ("HS256", lambda: "short", "too short"),
    ],
)
def test_a_key_that_is_wrong_for_its_algorithm_is_refused(
    algorithm: str, key: Callable[[], str], says: str
) -> None:
    with pytest.raises(InvalidSettingError, match=says) as refused:
        auth_of(algorithm, key=key())
    assert "BEGIN" not in str(refused.value)
    assert redact_text(str(refused.value), 2_000) == str(refused.value)


# -- a key set in a file


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_the_key_id_chooses_the_key(algorithm: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(key_set(jwk_of(algorithm, "a"), jwk_of(algorithm, "b")))
    auth = auth_of(algorithm, jwks=str(file))
    for name in ("a", "b"):
        assert await accepts(auth, token_of(algorithm, name))
    assert not await accepts(auth, token_of(algorithm, "c"))
    assert not await accepts(auth, token_of(algorithm, "a", headers={"kid": "b"}))
    # Without an id it is not known which.
    assert not await accepts(auth, token_of(algorithm, "a", headers={}))


async def test_the_only_key_needs_no_id(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(key_set(jwk_of("ES256", kid=None)))
    auth = auth_of("ES256", jwks=str(file))
    assert await accepts(auth, token_of("ES256", headers={}))
    assert not await accepts(auth, token_of("ES256", headers={"kid": "a"}))


async def test_a_file_that_changes_is_read_again_and_a_bad_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_sets, "FILE_SECONDS", 0)
    file = tmp_path / "keys.json"
    file.write_text(key_set(jwk_of("ES256", "a")))
    auth = auth_of("ES256", jwks=str(file))
    assert await accepts(auth, token_of("ES256", "a"))

    replace(file, key_set(jwk_of("ES256", "b")))
    assert await accepts(auth, token_of("ES256", "b"))
    assert not await accepts(auth, token_of("ES256", "a"))

    for text in ("{", key_set(), key_set(jwk_of("RS256")), "x" * 300_000):
        replace(file, text)
        assert await accepts(auth, token_of("ES256", "b"))
    remove(file)
    assert await accepts(auth, token_of("ES256", "b"))
    assert "is used as it was" in caplog.text


def replace(file: Path, text: str) -> None:
    other = file.with_name("other")
    other.write_text(text)
    other.replace(file)


def remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"keys": {}}',
        key_set(),
        key_set(1, None, []),
        key_set(jwk_of("RS256")),
        key_set(jwk_of("ES256", use="enc")),
        key_set(jwk_of("ES256", alg="ES384")),
        key_set(jwk_of("ES256", key_ops=["sign"])),
        key_set(jwk_of("ES256", kid=["a"])),
        key_set(jwk_of("ES256", x="AAAA")),
        key_set(jwk_of("ES256", d="AAAA")),
        key_set({"kty": "oct", "k": encoded(b"k" * 32), "kid": "a", "alg": "HS256"}),
        key_set(jwk_of("ES256"), jwk_of("ES256", "b", kid="a")),
        key_set(*(jwk_of("ES256", kid=str(n)) for n in range(101))),
        '{"keys": [], "keys": []}',
        "[" * 100_000,
    ],
)
def test_a_key_set_without_a_usable_key_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    with pytest.raises(InvalidSettingError, match="which cannot be used"):
        auth_of("ES256", jwks=str(file))


async def test_keys_of_other_kinds_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    others = [jwk_of("RS256", "r"), {"kty": "OKP", "crv": "Ed25519", "x": "AA", "kid": "o"}, "x"]
    file.write_text(key_set(*others, jwk_of("ES256")))
    assert await accepts(auth_of("ES256", jwks=str(file)), token_of("ES256"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"jwks": "nowhere.json"}, "cannot be used"),
        ({"jwks": "k", "key": "k"}, "both set"),
        ({"jwks": "http://example.org/keys"}, "https"),
        ({"jwks": "http://10.0.0.1/keys"}, "https"),
        ({"jwks": "http://localhost.example.org/keys"}, "https"),
        ({"jwks": "https://user:secret@example.org/keys"}, "no address"),
        ({"jwks": "https://example.org/keys with spaces"}, "no address"),
        ({"jwks": "https://example.org\r\nHost: x/keys"}, "no address"),
        ({"jwks": "https:///keys"}, "no address"),
        ({"jwks": "HTTP://example.org/keys"}, "no address"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSettingError, match=says) as refused:
        auth_of("ES256", **options)
    assert "secret" not in str(refused.value)


def test_a_key_set_is_for_public_keys() -> None:
    with pytest.raises(InvalidSettingError, match="RS256 or ES256"):
        auth_of("HS256", jwks="keys.json")


# -- a key set at an address


@dataclass
class Issuer:
    """A server of key sets on this machine, as good or bad as it is told."""

    document: str = ""
    status: str = "200 OK"
    headers: str = ""
    answer: Callable[[asyncio.StreamWriter], Any] | None = None
    requests: list[bytes] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    port: int = 0
    now: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/keys?x=1"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve(reader, writer))
        self.tasks.append(task)
        # A task that is canceled before it begins would leave its connection open.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            if self.answer is not None:
                await self.answer(writer)
            else:
                body = self.document.encode()
                head = (
                    f"HTTP/1.1 {self.status}\r\n{self.headers}Content-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the service did not want to hear more, or to ask after all
        finally:
            writer.close()


@asynccontextmanager
async def issuing(**options: Any) -> AsyncIterator[tuple[Issuer, JwtAuth]]:
    issuer = Issuer(key_set(jwk_of("ES256")), **options)
    server = await asyncio.start_server(issuer.accept, "127.0.0.1", 0)
    issuer.port = server.sockets[0].getsockname()[1]
    auth = auth_of("ES256", jwks=issuer.url)
    source: Any = auth._keys
    source._clock = lambda: issuer.now
    try:
        yield issuer, auth
    finally:
        server.close()
        fetching_task = source._fetching
        if fetching_task is not None:
            fetching_task.cancel()
        await turn_loop()
        for task in issuer.tasks:
            task.cancel()
        await asyncio.gather(*issuer.tasks, return_exceptions=True)
        await turn_loop()
        gc.collect()


async def settle(auth: JwtAuth) -> None:
    """Wait for a fetch that runs beside the requests."""
    source: Any = auth._keys
    if source._fetching is not None:
        await source._fetching


async def test_a_key_set_is_fetched_once_and_plainly() -> None:
    async with issuing() as (issuer, auth):
        assert issuer.requests == []
        asked = await asyncio.gather(*(accepts(auth, token_of("ES256")) for _ in range(20)))
        assert asked == [True] * 20
        (request,) = issuer.requests
        assert request.startswith(b"GET /keys?x=1 HTTP/1.1\r\n")
        assert b"authorization" not in request.lower()


async def test_made_up_key_ids_cause_no_storm() -> None:
    async with issuing() as (issuer, auth):
        for number in range(50):
            assert not await accepts(auth, token_of("ES256", headers={"kid": f"made up {number}"}))
        assert len(issuer.requests) == 1
        issuer.now += key_sets.INTERVAL_SECONDS
        await asyncio.gather(
            *(accepts(auth, token_of("ES256", headers={"kid": f"{n}"})) for n in range(50))
        )
        assert len(issuer.requests) == 2
        assert await accepts(auth, token_of("ES256"))


async def test_a_new_key_is_found_and_a_removed_one_is_forgotten() -> None:
    async with issuing() as (issuer, auth):
        assert await accepts(auth, token_of("ES256", "a"))
        issuer.document = key_set(jwk_of("ES256", "b"))
        assert not await accepts(auth, token_of("ES256", "b"))
        issuer.now += key_sets.INTERVAL_SECONDS
        assert await accepts(auth, token_of("ES256", "b"))
        assert not await accepts(auth, token_of("ES256", "a"))


async def test_a_removed_key_is_forgotten_although_nobody_asks_for_another() -> None:
    async with issuing() as (issuer, auth):
        assert await accepts(auth, token_of("ES256", "a"))
        issuer.document = key_set(jwk_of("ES256", "b"))
        issuer.now += key_sets.REFRESH_SECONDS
        assert await accepts(auth, token_of("ES256", "a"))  # it does not wait
        await settle(auth)
        assert not await accepts(auth, token_of("ES256", "a"))


async def drip(writer: asyncio.StreamWriter) -> None:
    """A byte now and then, for ever."""
    while True:
        writer.write(b"H")
        await writer.drain()
        await asyncio.sleep(0.005)


async def flood(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def long_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000)
    await writer.drain()


async def cut(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()


async def silence(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


FAULTS: dict[str, dict[str, Any]] = {
    "an error": {"status": "500 Oh"},
    "a redirect": {"status": "302 Found", "headers": "Location: https://127.0.0.1:1/\r\n"},
    "no JSON": {"document": "<html>"},
    "no keys": {"document": key_set()},
    "too much": {"document": " " * 300_000},
    "a drip": {"answer": drip},
    "a flood": {"answer": flood},
    "a long head": {"answer": long_head},
    "a cut": {"answer": cut},
    "silence": {"answer": silence},
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_issuer_that_fails_costs_nothing_that_was_known(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetching, "FETCH_SECONDS", 0.3)
    async with issuing() as (issuer, auth):
        assert await accepts(auth, token_of("ES256"))
        for name, value in FAULTS[fault].items():
            setattr(issuer, name, value)
        issuer.now += key_sets.INTERVAL_SECONDS
        assert not await accepts(auth, token_of("ES256", "b"))
        assert await accepts(auth, token_of("ES256"))
        assert "is used as it was" in caplog.text
        assert len(issuer.requests) == 2
        # Not for ever: the issuer may have removed it for a reason.
        issuer.now += key_sets.STALE_SECONDS + 1
        assert not await accepts(auth, token_of("ES256"))


async def test_an_issuer_that_is_not_there_refuses_tokens_and_is_asked_again() -> None:
    async with issuing(status="503 Later") as (issuer, auth):
        assert not await accepts(auth, token_of("ES256"))
        issuer.status = "200 OK"
        assert not await accepts(auth, token_of("ES256"))
        issuer.now += key_sets.INTERVAL_SECONDS
        assert await accepts(auth, token_of("ES256"))


async def test_a_caller_who_goes_does_not_stop_the_fetch_for_others() -> None:
    async with issuing() as (issuer, auth):
        gone = asyncio.create_task(accepts(auth, token_of("ES256")))
        await asyncio.sleep(0)
        stays = asyncio.create_task(accepts(auth, token_of("ES256")))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays
        assert len(issuer.requests) == 1


async def test_an_address_without_a_certificate_is_refused() -> None:
    async with issuing() as (issuer, _):
        auth = auth_of("ES256", jwks=issuer.url.replace("http:", "https:"))
        assert not await accepts(auth, token_of("ES256"))


# -- how much it costs, and where it may go


async def test_a_check_does_not_hold_up_the_others() -> None:
    """Some milliseconds would be felt; a check takes some hundredths of one."""
    for algorithm in ALGORITHMS:
        auth, token = auth_of(algorithm), token_of(algorithm)
        best = float("inf")
        for _ in range(20):
            began = time.perf_counter()
            await ask(auth, token)
            best = min(best, time.perf_counter() - began)
        assert best < 0.005


def test_one_module_alone_opens_connections() -> None:
    folder = Path(commandbus.http.__file__).parent
    opening = {"open_connection", "create_connection", "open_unix_connection", "create_task_group"}
    found = {
        path.name
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in opening
    }
    assert found == {"fetching.py"}


def test_the_environment_names_the_key_set() -> None:
    name = "COMMANDBUS_HTTP_JWT_JWKS"
    assert HttpSettings.from_env({name: f"{os.curdir}/keys.json"}).jwt_jwks == "./keys.json"

"""The peppers of API tokens: keys outside the database, mixed into the hashes of secrets.

Who can write the table of tokens but does not know the pepper cannot make a token. A stored hash
begins with the fingerprint of its pepper, so that a process with another one can say why it
refuses a token. Hashes without a fingerprint are of releases that wrote none.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable

from commandbus.errors import InvalidSettingError
from commandbus.keys import MIN_BYTES, Key, Keys
from commandbus.settings import Settings

#: The name of the key: COMMANDBUS_TOKEN_PEPPER, COMMANDBUS_TOKEN_PEPPER_FILE, token_pepper.key.
NAME = "token_pepper"
#: Bytes of a hash without its fingerprint, and of the fingerprint before it.
HASH_BYTES = 32
MARK_BYTES = 8
#: Seconds between two looks for a pepper that was not there, and between two logs of the same.
LOOK_SECONDS = 5.0
LOG_SECONDS = 60.0
#: What releases before used if none was set.
_EMPTY = Key(b"")

_log = logging.getLogger("commandbus.access")


class Peppers:
    """The pepper that new tokens get, and those that tokens may have."""

    def __init__(
        self, settings: Settings | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        settings = settings or Settings()
        self._given = Key(settings.token_pepper.encode()) if settings.token_pepper else None
        self._folder = settings.keys_folder or None
        self._old = [Key(text.encode()) for text in _parts(settings.token_pepper_old)]
        #: Whether tokens of releases before are accepted that had no pepper.
        self.accepts_unpeppered = settings.unpeppered_tokens
        self._clock = clock
        self._current = self._given
        self._looked_at = float("-inf")
        self._own = secrets.token_bytes(MIN_BYTES)
        self._marks: dict[Key, bytes] = {}
        self._logged: dict[bytes, float] = {}
        self._others: dict[str, Key | None] = {}
        self._fallback = Key(secrets.token_bytes(MIN_BYTES))
        if self._given is not None and len(self._given) < MIN_BYTES:
            _log.warning(
                "the pepper of API tokens is short, and could be guessed; use %d random bytes or "
                "more, and list this one in COMMANDBUS_TOKEN_PEPPER_OLD",
                MIN_BYTES,
            )

    @property
    def place(self) -> str:
        """Where the pepper comes from, to be shown to people."""
        if self._given is not None:
            return "the setting token_pepper"
        return Keys.place(NAME, folder=self._folder)

    def hashed(self, secret: str) -> bytes:
        """The hash to store, under the current pepper, which is made if there is none."""
        if self._current is None:
            self._current = Keys.load(NAME, folder=self._folder)
        return self._mark(self._current) + _hmac(self._current, secret)

    def proves(self, secret: str, expected: bytes) -> bool:
        """Whether this is the hash of the secret; takes as long for right as for wrong ones."""
        mark = expected[:-HASH_BYTES]
        is_right = False
        for key in self._known(mark):
            # A hash of an earlier release does not say which pepper it has.
            beginning = self._mark(key) if mark else b""
            is_right |= hmac.compare_digest(beginning + _hmac(key, secret), expected)
        # Compared even if it does not count, or the time would tell whether a token exists.
        was_right = hmac.compare_digest(_hmac(_EMPTY, secret), expected)
        return is_right or (was_right and self.accepts_unpeppered)

    def derived(self, purpose: str) -> bytes:
        """A key for something else, the same in all processes with this pepper.

        Without a pepper it is one of this process alone, which nobody can guess.
        """
        self._known(b"")
        return hmac.digest(self._current or self._own, f"commandbus {purpose}".encode(), "sha256")

    def unknown(self, marks: set[str]) -> set[str]:
        """Those of the fingerprints that are of no pepper of this process."""
        if marks:
            self._look()
        return marks - {self._mark(key).hex() for key in self._all()}

    def explain(self, expected: bytes) -> None:
        """Log why a stored token cannot be right here, if its pepper is not known."""
        mark = expected[:-HASH_BYTES]
        if not mark or mark in map(self._mark, self._all()):
            return
        now = self._clock()
        if now - self._logged.get(mark, float("-inf")) < LOG_SECONDS:
            return
        self._logged[mark] = now
        _log.warning("refused a token: it %s", self.difference({mark.hex()}))

    def difference(self, marks: set[str]) -> str:
        """What is wrong, and what to do, if tokens have peppers with these fingerprints."""
        own = "no pepper" if self._current is None else f"pepper {self._current.fingerprint}"
        return (
            f"was made with the pepper {', '.join(sorted(marks))}, and this process has {own} "
            f"({self.place}); give every process that makes or checks tokens the same one, in "
            "COMMANDBUS_TOKEN_PEPPER or a copy of the file token_pepper.key"
        )

    def key_for(self, name: str) -> bytes:
        """A key of the service for something else, the same in all its processes: the one that is
        set under this name, else one made from the pepper. Without either it is one of this process
        alone; none is written to a file.
        """
        if name not in self._others:
            self._others[name] = Keys.load(
                f"{name}_key", folder=self._folder, allow_create=False
            )
        given = self._others[name]
        if given is not None:
            return given
        self._known(b"")
        return _hmac(self._current or self._fallback, f"commandbus/{name}")

    def _known(self, mark: bytes) -> list[Key]:
        """All peppers. Looks again for one, if there is none or the mark is of another."""
        is_missing = mark and mark not in map(self._mark, self._all())
        now = self._clock()
        if (self._current is None or is_missing) and now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._look()
        return self._all()

    def _all(self) -> list[Key]:
        return self._old if self._current is None else [self._current, *self._old]

    def _look(self) -> None:
        # A check never makes a pepper: it would be the wrong one. Another process may have made it.
        if self._given is not None:
            return
        try:
            found = Keys.load(NAME, folder=self._folder, allow_create=False)
        except InvalidSettingError as error:
            # Tokens of before can be checked without it.
            now = self._clock()
            if now - self._logged.get(b"", float("-inf")) >= LOG_SECONDS:
                self._logged[b""] = now
                _log.error("%s", error)
            return
        if found is not None:
            self._current = found

    def _mark(self, key: Key) -> bytes:
        if key not in self._marks:
            self._marks[key] = bytes.fromhex(key.fingerprint)
        return self._marks[key]


def _hmac(key: Key, secret: str) -> bytes:
    return hmac.new(key, secret.encode(), hashlib.sha256).digest()


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]

"""Which keys are sensitive: the one rule for values, for texts, and for marks on payload types.

A key is compared by its words, however they are written: `privateKey`, `Private-Key`, `private.key`
and `PRIVATE_KEY` are one key. Full-width letters, accents and invisible characters do not hide one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

#: A key that contains one of these has its value masked. `_`: words that may stand together.
SENSITIVE_PARTS = (
    "access_key", "account_key", "api_key", "auth_code", "auth_key", "authorization", "backup_code",
    "bearer", "card_number", "client_key", "conn_str", "connection_string", "cookie", "credential",
    "db_pass", "deploy_key", "encryption_key", "hmac_key", "kube_config", "master_key", "mnemonic",
    "passcode", "passphrase", "passwd", "password", "private_key", "pwd", "recovery_code", "secret",
    "security_code", "seed_phrase", "sessid", "session_key", "shared_key", "signing_key", "ssh_key",
    "token", "user_pass", "verification_code",
)  # fmt: skip
#: The same for a key that has one of these as a word of its own, or as several: each of them is a
#: part of harmless words too, as `pin` is of `shipping`.
SENSITIVE_WORDS = (
    "csrf", "cvc", "cvv", "dsn", "j_session_id", "jwt", "otp", "pass", "pin", "session_id", "sig",
    "totp", "xsrf",
)  # fmt: skip

#: Characters of a key that are looked at; a longer one is taken for sensitive.
MAX_KEY = 1_000
#: Keys whose answer is remembered, and the length up to which one is.
_REMEMBERED = 8_192
_SHORT = 100

# Upper case before a capitalised word, a capitalised or lower-case word, upper case, digits; and
# letters without case. The key is short, and each character is looked at a few times at most.
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\W_A-Za-z0-9]+")
_APART = re.compile(r"[\W_]+")
# Marks, and characters that take no room: they are dropped, so that none can hide in a word.
_UNSEEN = {"Mn", "Me", "Cf", "Cc"}


class Forms(NamedTuple):
    """One key, in the forms in which it is compared."""

    #: Its words: `my_private_key` for `myPrivateKEY`.
    words: str
    #: Apart only where it is written so: `passWord` is `password`.
    written: str
    #: All in one.
    flat: str


def forms_of(key: str) -> Forms:
    """The forms of a key that is not too long."""
    return _remembered_forms(key) if len(key) <= _SHORT else _forms(key)


def _forms(key: str) -> Forms:
    if not key.isascii():
        apart = unicodedata.normalize("NFKD", key).replace("\N{LATIN SMALL LETTER DOTLESS I}", "i")
        key = "".join(each for each in apart if unicodedata.category(each) not in _UNSEEN)
    words = "_".join(_WORD.findall(key)).casefold()
    written = _APART.sub("_", key).strip("_").casefold()
    return Forms(words, written, written.replace("_", "") or key.strip())


_remembered_forms = lru_cache(_REMEMBERED)(_forms)


def normalised(key: str) -> str:
    """A key by its words: `Api-Key`, `apiKey` and `api_key` are the same."""
    key = key[:MAX_KEY]
    return forms_of(key).words or key.strip().lower()


class Rules:
    """The sensitive names of this process."""

    def __init__(self, own: Iterable[str] = ()) -> None:
        self.own = tuple(own)
        parts = (*SENSITIVE_PARTS, *self.own)
        inside = "|".join(map(_pattern, parts))
        whole = "|".join(map(_pattern, SENSITIVE_WORDS))
        # A word may have the s of a plural.
        self._pattern = re.compile(rf"(?:{inside})|(?:(?<![^_])(?:{whole})(?=s?(?:_|\Z)))")
        #: The last words of names with several: `key` may follow `api` after a space in a text.
        several = [name.split("_") for name in (*parts, *SENSITIVE_WORDS) if "_" in name]
        self.last_words = frozenset(end for *_, last in several for end in (last, f"{last}s"))
        self._remembered = lru_cache(_REMEMBERED)(self._has)

    def has(self, key: str) -> bool:
        """Whether a key is sensitive by its name."""
        if len(key) > MAX_KEY:
            return True
        return self._remembered(key) if len(key) <= _SHORT else self._has(key)

    def _has(self, key: str) -> bool:
        forms = forms_of(key)
        return self._pattern.search(forms.words) is not None or (
            forms.written != forms.words and self._pattern.search(forms.written) is not None
        )


def _pattern(name: str) -> str:
    return "_?".join(map(re.escape, name.split("_")))


_rules = Rules()


def rules() -> Rules:
    """The rules of this process, as they are now."""
    return _rules


def also_redact(keys: Iterable[str]) -> None:
    """Mask the values of these keys too, from now on and in this whole process.

    Names are only ever added: logs belong to the process, and no bus may unmask for another.
    """
    global _rules  # noqa: PLW0603  (replaced as a whole, so that a reader in a thread sees one)
    new = {normalised(key) for key in keys} - {"", *_rules.own, *SENSITIVE_PARTS}
    if new:
        _rules = Rules((*_rules.own, *sorted(new)))


def is_sensitive_key(key: str, marked: Collection[str] = ()) -> bool:
    """Say whether the value under this key must not be shown.

    `marked` are keys of a typed payload: they must match as a whole, the others as a part.
    """
    if _rules.has(key):
        return True
    return bool(marked) and forms_of(key).flat in _flat_marks(frozenset(marked))


@lru_cache(1_024)
def _flat_marks(marked: frozenset[str]) -> frozenset[str]:
    return frozenset(forms_of(key[:MAX_KEY]).flat for key in marked)

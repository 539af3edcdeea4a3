"""Forms: their fields, and the token without which none is taken."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import Request

from commandbus.http.problems import Kind, Problem

#: Fields of one form: a page of 200 rows that are chosen, and some more.
MAX_FIELDS = 500
MEDIA_TYPE = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form."""

    fields: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, body: bytes) -> Form:
        """Of a body as browsers send it."""
        try:
            found = parse_qsl(
                body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
            )
        except ValueError:
            raise Problem(Kind.INVALID_REQUEST, "the form cannot be read; send it again") from None
        if any("\0" in text for pair in found for text in pair):
            raise Problem(Kind.INVALID_REQUEST, "a field contains a character that no text has")
        return cls(tuple(found))

    def many(self, name: str) -> list[str]:
        """All values of a field."""
        return [value for key, value in self.fields if key == name]

    def text(self, name: str, default: str = "") -> str:
        """The value of a field, without space around it; line ends are those of Unix."""
        found = self.many(name)
        if len(found) > 1:
            raise Problem(Kind.INVALID_REQUEST, f"the field {name} is there {len(found)} times")
        return found[0].replace("\r\n", "\n").strip() if found else default

    def required(self, name: str, label: str = "") -> str:
        """The value of a field that must not be empty."""
        found = self.text(name)
        if not found:
            raise Problem(Kind.INVALID_REQUEST, f"fill in the field “{label or name}”")
        return found

    def number(self, name: str, default: int | None = None) -> int | None:
        """The value of a field as a whole number; `default` if it is empty."""
        found = self.text(name).replace(",", "")
        if not found:
            return default
        if not re.fullmatch(r"-?\d{1,15}", found):
            raise Problem(Kind.INVALID_REQUEST, f"the field {name} is no whole number")
        return int(found)

    def decimal(self, name: str, default: float | None = None) -> float | None:
        """The value of a field as a number; `default` if it is empty."""
        found = self.text(name).replace(",", "")
        if not found:
            return default
        if not re.fullmatch(r"-?\d{1,15}(\.\d{1,9})?", found):
            raise Problem(Kind.INVALID_REQUEST, f"the field {name} is no number")
        return float(found)

    def checked(self, name: str) -> bool:
        """Whether a box is checked."""
        return bool(self.many(name))


async def _form_of(request: Request) -> Form:
    return Form.of(await request.body())


#: `form: Fields` in the signature of an action's function.
Fields = Annotated[Form, Depends(_form_of)]


class CsrfTokens:
    """The tokens of one session, one for each address that a form posts to."""

    def __init__(self, key: bytes, subject: str) -> None:
        self._key = key
        self._subject = subject

    def of(self, path: str) -> str:
        """The token for a path, as it is without the escapes of addresses."""
        message = f"{self._subject}\0{path}".encode(errors="replace")
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()

    def fits(self, path: str, token: str) -> bool:
        """Whether a form may post to this path."""
        return hmac.compare_digest(self.of(path).encode(), token.encode(errors="replace"))


class Placeholders(CsrfTokens):
    """What stands for tokens in markup that several users get; each gets its own put in.

    Random, so that no text of a command can look like one.
    """

    def __init__(self) -> None:
        super().__init__(b"", "")
        self._mark = secrets.token_hex(16)
        self._pattern = re.compile(f"{self._mark}:([0-9a-f]*):")

    def of(self, path: str) -> str:
        """A mark with the path, in digits: no markup needs to escape them."""
        return f"{self._mark}:{path.encode(errors='replace').hex()}:"

    def fits(self, path: str, token: str) -> bool:  # noqa: ARG002
        """Never: it is in nobody's form."""
        return False

    def filled(self, markup: str, tokens: CsrfTokens) -> str:
        """The markup for one user."""
        if self._mark not in markup:
            return markup
        return self._pattern.sub(lambda found: tokens.of(bytes.fromhex(found[1]).decode()), markup)

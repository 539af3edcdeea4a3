"""Codec: one type of payloads or results, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from commandbus.errors import InvalidPayloadError
from commandbus.typed.problems import MisfitError, Problem
from commandbus.typed.reading import Reader, reader_of
from commandbus.typed.writing import plain

#: Problems that one line of an error tells.
_MAX_TOLD = 5
#: Types whose way in and out is remembered.
_MAX_KNOWN = 1_000


class Codec:
    """How values of one type become JSON, and come back."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        #: Of a worker: what a newer sender added is ignored.
        self._open = reader_of(kind, is_closed=False)

    @cached_property
    def _closed(self) -> Reader | None:
        # Of a sender: what the type does not have is a typing error.
        return reader_of(self.kind, is_closed=True)

    @property
    def name(self) -> str:
        """The name of the type."""
        return getattr(self.kind, "__name__", None) or str(self.kind)

    @property
    def read(self) -> Reader | None:
        """Makes a value of JSON, or raises MisfitError; None: as it is."""
        return self._open

    def problems(self, data: Any) -> list[Problem]:
        """Where data that is to be sent does not fit."""
        try:
            if self._closed is not None:
                self._closed(data)
        except MisfitError as error:
            return error.problems
        return []

    def check(self, data: Any) -> None:
        """Raise InvalidPayloadError, without a value, if data that is to be sent does not fit."""
        if found := self.problems(data):
            raise InvalidPayloadError(
                f"data is not a {self.name}: {'; '.join(each.line for each in found[:_MAX_TOLD])}"
            )

    def result(self, value: Any) -> Any:
        """A result as plain JSON; raises MisfitError if it is no value of the type."""
        written = plain(value)
        if self._open is not None:
            self._open(written)
        return written


@lru_cache(maxsize=_MAX_KNOWN)
def codec_of(kind: Any) -> Codec:
    """The codec of a type; raises InvalidSettingError if it cannot be read from JSON."""
    return Codec(kind)


def check_fits(payload_type: type, data: Mapping[str, Any]) -> None:
    """Raise InvalidPayloadError, without a value of the payload, if data does not fit its type."""
    codec_of(payload_type).check(dict(data))


def misfits(payload_type: type, data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where data does not fit its type, and what is wrong there; never with a value of it."""
    is_model = hasattr(payload_type, "model_fields")
    return [
        (place, message if is_model else line)
        for place, message, line in codec_of(payload_type).problems(dict(data))
    ]

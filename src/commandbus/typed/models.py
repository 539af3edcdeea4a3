"""A model as the data of a command."""

from __future__ import annotations

from typing import Any

from commandbus.errors import InvalidPayloadError
from commandbus.privacy.secrets import is_model
from commandbus.typed.codec import codec_of
from commandbus.typed.writing import plain


def written(value: Any, *, is_checked: bool) -> Any:
    """A model as plain JSON; raises InvalidPayloadError, without its values, if it does not fit."""
    kind: Any = type(value)
    if not is_model(kind):
        return value
    try:
        data = plain(value)
    except Exception as error:  # noqa: BLE001  (whatever a model raises)
        # The text of a model's error has values in it.
        raise InvalidPayloadError(
            f"the {kind.__name__} cannot be encoded: {type(error).__name__}"
        ) from None
    if is_checked:
        codec_of(kind).check(data)
    return data

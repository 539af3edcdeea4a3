"""User ids. Whether two users are one decides whether somebody approves their own batch, and people
compare the ids in tickets and in the audit: so two ids must not look alike and be different.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from commandbus.errors import InvalidInputError
from commandbus.names import check_text

#: Characters of a user id.
MAX_USER_ID = 200


def check_new_user(user_id: Any, what: str = "user") -> str:
    """Return the id of a user who comes in, or raise InvalidInputError.

    Capitals stay as they are: for those who issue tokens they make another user.
    """
    text = check_text(user_id, what, max_length=MAX_USER_ID)
    is_plain = text == text.strip() and text.isprintable()
    if not is_plain or unicodedata.normalize("NFC", text) != text:
        raise InvalidInputError(
            f"{what} has a space at an end, an invisible character or a letter that is made of "
            "several; write it as it is read"
        )
    return text

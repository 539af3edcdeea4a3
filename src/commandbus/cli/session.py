"""The token of `up`: shown on a terminal, or written to a file that was asked for; never into the
output of a script, where it would stay.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from commandbus.errors import InvalidSettingError

if TYPE_CHECKING:
    from commandbus.http.auth.session import SessionToken

#: A working day. Then `up` makes another one: what was copied from a terminal is not good for ever.
TOKEN_LIFE = timedelta(hours=8)


def is_terminal() -> bool:
    """Whether what is printed is seen and not kept."""
    return sys.stdout.isatty()


def new_session(user: str) -> SessionToken:
    """A token with every scope but that of passing governance by."""
    from commandbus.access.model import EVERYTHING
    from commandbus.http.auth.session import SessionToken

    return SessionToken(user, EVERYTHING, TOKEN_LIFE)


@asynccontextmanager
async def kept_fresh(
    session: SessionToken, file: Path | None, tell: Callable[[str], None]
) -> AsyncIterator[None]:
    """Make a new token whenever the life of one ends; in the end, remove the file with it."""
    if file is not None:
        refuse_other_file(file)

    async def renew() -> None:
        while True:
            await asyncio.sleep(session.life.total_seconds())
            text = session.renew()
            if file is not None:
                write_token(file, text)
            tell(text)

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        if file is not None:
            _remove_token(file, session.text)


def write_token(file: Path, text: str) -> None:
    """Write a file that only this account can read; it appears whole or not at all."""
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        refuse_other_file(file)
        with os.fdopen(os.open(unfinished, flags, 0o600), "w", encoding="ascii") as opened:
            opened.write(f"{text}\n")
        unfinished.replace(file)
    except OSError as error:
        raise InvalidSettingError(
            f"--token-file: cannot write {file}: {error.strerror or error}"
        ) from error


def _remove_token(file: Path, text: str) -> None:
    with suppress(OSError):
        if file.read_text(encoding="ascii").strip() == text:  # it may be that of another `up`
            file.unlink()


def refuse_other_file(file: Path) -> None:
    """A slip of the pen must not cost a file: only one with a token in it is replaced."""
    try:
        status = file.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISREG(status.st_mode) and (not status.st_size or file.read_bytes()[:3] == b"cb_"):
        return
    raise InvalidSettingError(f"--token-file: {file} is something else; name another file")

"""Keys: secrets that must not be in the database, each with a name.

A key is looked for in this order:

1. the variable COMMANDBUS_<NAME>;
2. the file that COMMANDBUS_<NAME>_FILE names, for example a mounted secret;
3. the file `<name>.key` in the folder of keys, which is made on first use with 256 random bits.

The folder is COMMANDBUS_KEYS_FOLDER, else `commandbus` in $XDG_CONFIG_HOME or ~/.config. A key is
the text itself, so a made file can be copied into a variable, or the other way round.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, overload

from commandbus.errors import InvalidSettingError

FOLDER_VARIABLE = "COMMANDBUS_KEYS_FOLDER"
#: Of a key, whatever brings it: shorter ones can be guessed.
MIN_BYTES = 32
MAX_BYTES = 4_096

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_log = logging.getLogger("commandbus.keys")


class Key(bytes):
    """The bytes of a key. Texts that are made of it do not show them."""

    def __repr__(self) -> str:
        """Nothing of the key."""
        return "Key(***)"

    __str__ = __repr__

    if not TYPE_CHECKING:  # the declared type of a format is that of bytes

        def __format__(self, spec: str) -> str:
            """Nothing of the key."""
            return repr(self)

    @property
    def fingerprint(self) -> str:
        """Which key it is, in 16 characters that may be stored and shown.

        Slow on purpose (some milliseconds), for keys that a person made up: who reads a
        fingerprint cannot try words quickly.
        """
        import hashlib  # noqa: PLC0415  (a fifth of this module's import time)

        made = hashlib.pbkdf2_hmac("sha256", self, b"commandbus key fingerprint", 20_000, 8)
        return made.hex()


class Keys:
    """Where keys are found, or made."""

    @overload
    @classmethod
    def load(
        cls,
        name: str,
        *,
        folder: str | Path | None = ...,
        allow_create: Literal[True] = ...,
        environ: Mapping[str, str] | None = ...,
    ) -> Key: ...
    @overload
    @classmethod
    def load(
        cls,
        name: str,
        *,
        folder: str | Path | None = ...,
        allow_create: bool,
        environ: Mapping[str, str] | None = ...,
    ) -> Key | None: ...

    @classmethod
    def load(
        cls,
        name: str,
        *,
        folder: str | Path | None = None,
        allow_create: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> Key | None:
        """The key of this name; made if there is none, or None if it must not be made."""
        if not _NAME.match(name):
            raise InvalidSettingError(f"{name!r} is no name of a key; use a-z, 0-9 and _")
        environ = os.environ if environ is None else environ
        variable = f"COMMANDBUS_{name.upper()}"
        text, named = environ.get(variable, ""), environ.get(f"{variable}_FILE", "")
        if text and named:
            raise InvalidSettingError(f"{variable} and {variable}_FILE are both set; use one")
        if text:
            return _checked(text.encode("utf-8", "surrogateescape"), variable)
        if named:
            return _read_named(Path(named), f"{variable}_FILE")
        return _Folder(name, folder, environ).load(allow_create=allow_create)

    @classmethod
    def place(
        cls,
        name: str,
        *,
        folder: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> str:
        """Where the key of this name is looked for, to be shown to people."""
        environ = os.environ if environ is None else environ
        variable = f"COMMANDBUS_{name.upper()}"
        for each in (variable, f"{variable}_FILE"):
            if environ.get(each):
                return each
        return str(_Folder(name, folder, environ).path)


class _Folder:
    """The folder of keys, and one key in it."""

    def __init__(self, name: str, folder: str | Path | None, environ: Mapping[str, str]) -> None:
        self._name = name
        self._folder = _folder_of(name, folder, environ)
        self.path = self._folder / f"{name}.key"

    def load(self, *, allow_create: bool) -> Key | None:
        try:
            found = self._read()
            if found is None and allow_create:
                self._make()
                found = self._read()
        except OSError as error:
            _refuse(self._name, f"{self.path} cannot be used ({error.strerror})", error)
        return found

    def _read(self) -> Key | None:
        try:
            content, status = _read_file(self.path)
        except FileNotFoundError:
            return None
        if status.st_uid != os.geteuid():
            _refuse(
                self._name,
                f"{self.path} belongs to another account (uid {status.st_uid}), which knows it; "
                "run as that account, or remove the file",
            )
        if status.st_mode & _OTHERS:
            _refuse(
                self._name,
                f"other accounts can read {self.path}; if none has, `chmod 600` it, else "
                "remove it, which makes a new key",
            )
        return _checked(content, str(self.path))

    def _make(self) -> None:
        """Write a new key under another name, then give it its name unless another has it.

        Of two processes that start at once, the second finds the name taken and reads the key of
        the first. The file is whole before it has its name.
        """
        import base64  # noqa: PLC0415  (once in the life of a key)
        import secrets  # noqa: PLC0415

        self._prepare()
        unfinished = self._folder / f".{self.path.name}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(unfinished, flags, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(base64.urlsafe_b64encode(secrets.token_bytes(MIN_BYTES)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(unfinished, self.path)
            except FileExistsError:
                return
        finally:
            unfinished.unlink()
        self._sync()
        _log.info(
            "made the key %s; other machines on the same database need the same one", self.path
        )

    def _prepare(self) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        status = self._folder.stat()
        if status.st_uid not in {os.geteuid(), 0} or status.st_mode & _WRITABLE_BY_OTHERS:
            _refuse(
                self._name,
                f"other accounts can write in {self._folder}; use a folder of your own with "
                "`chmod 700`",
            )

    def _sync(self) -> None:
        # Without it a crash of the machine could take the name back, after tokens were made.
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _folder_of(name: str, folder: str | Path | None, environ: Mapping[str, str]) -> Path:
    if given := folder or environ.get(FOLDER_VARIABLE):
        return Path(given).expanduser().absolute()
    config = Path(environ.get("XDG_CONFIG_HOME", ""))
    # The XDG convention says to ignore a relative path.
    return (config if config.is_absolute() else _home(name, environ) / ".config") / "commandbus"


def _home(name: str, environ: Mapping[str, str]) -> Path:
    """The home folder of the account that runs this: `sudo` may leave HOME to another's."""
    home = Path(environ.get("HOME", ""))
    try:
        if home.is_absolute() and home.stat().st_uid == os.geteuid():
            return home
    except OSError:
        pass
    import pwd  # noqa: PLC0415  (rarely needed)

    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        _refuse(name, "this account has no home folder to keep it in")


def _read_named(path: Path, variable: str) -> Key:
    """A file that was named: mounted secrets belong to root and are readable in the container."""
    try:
        content, status = _read_file(path)
    except OSError as error:
        raise InvalidSettingError(
            f"cannot read {path}, which {variable} names ({error.strerror})"
        ) from None
    if status.st_uid not in {os.geteuid(), 0} or status.st_mode & _WRITABLE_BY_OTHERS:
        raise InvalidSettingError(
            f"other accounts can write {path}, which {variable} names; it must belong to this "
            "account or root, and nobody else may write it"
        )
    return _checked(content, f"{variable} ({path})")


def _read_file(path: Path) -> tuple[bytes, os.stat_result]:
    # Looked at after it is open, so that what was looked at is what is read. Not blocking: a pipe
    # would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a file")
        return file.read(MAX_BYTES + 1), status


def _checked(content: bytes, source: str) -> Key:
    # The end of a line belongs to a text, not to 32 random bytes.
    key = content.strip() if content.isascii() else content
    if not MIN_BYTES <= len(key) <= MAX_BYTES:
        raise InvalidSettingError(
            f"{source} holds {len(key)} bytes; a key has {MIN_BYTES} to {MAX_BYTES:,}, for "
            "example what `openssl rand -base64 32` prints"
        )
    return Key(key)


def _refuse(name: str, why: str, cause: OSError | None = None) -> NoReturn:
    # No colon after a name like this: what follows would be taken for a secret, and masked.
    variable = f"COMMANDBUS_{name.upper()}"
    raise InvalidSettingError(
        f"there is no key {name}, because {why}. Either set {FOLDER_VARIABLE} to a private folder "
        "that can be written and lasts, or give every process the same key in "
        f"{variable} or {variable}_FILE "
        "(`openssl rand -base64 32` makes one)"
    ) from cause

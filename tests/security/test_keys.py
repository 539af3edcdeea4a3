"""Keys outside the database: found, made once, and refused where others could know them."""

from __future__ import annotations

import hmac
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from commandbus.errors import InvalidSettingError
from commandbus.keys import Key, Keys
from commandbus.privacy.redaction import redact_text

TEXT = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "config" / "commandbus"


def load(folder: Path | None, *, allow_create: bool = True, **environ: str) -> Key | None:
    return Keys.load("pepper", folder=folder, allow_create=allow_create, environ=environ)


def test_a_key_is_made_once_and_only_its_owner_can_read_it(folder: Path) -> None:
    made = load(folder)
    file = folder / "pepper.key"
    assert made is not None
    assert made == load(folder) == file.read_bytes().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == ["pepper.key"]


def test_a_made_file_and_a_variable_with_its_text_are_the_same_key(folder: Path) -> None:
    made = load(folder)
    text = (folder / "pepper.key").read_text()
    assert load(None, COMMANDBUS_PEPPER=text) == made
    assert load(None, COMMANDBUS_PEPPER_FILE=str(folder / "pepper.key")) == made
    assert load(None, COMMANDBUS_KEYS_FOLDER=str(folder)) == made


def test_each_name_has_its_own_key(folder: Path) -> None:
    assert Keys.load("pepper", folder=folder) != Keys.load("seal", folder=folder)


def test_a_key_is_not_made_where_that_is_not_allowed(folder: Path) -> None:
    assert load(folder, allow_create=False) is None
    assert not folder.exists()


def test_processes_that_start_at_once_get_the_same_key(folder: Path) -> None:
    code = (
        "import sys; from commandbus.keys import Keys;"
        "print(Keys.load('pepper', folder=sys.argv[1]).hex())"
    )

    def run(_: int) -> str:
        command = [sys.executable, "-c", code, str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(run, range(6)))) == 1
    assert [path.name for path in folder.iterdir()] == ["pepper.key"]


def test_threads_that_start_at_once_get_the_same_key(folder: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(lambda _: load(folder), range(64)))) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_key_that_others_can_read_is_refused(folder: Path, mode: int) -> None:
    load(folder)
    (folder / "pepper.key").chmod(mode)
    with pytest.raises(InvalidSettingError, match="chmod 600"):
        load(folder)


def test_a_folder_that_others_can_write_gets_no_key(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(InvalidSettingError, match="other accounts can write in"):
        load(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_key_of_another_account_is_refused(folder: Path) -> None:
    load(folder)
    os.chown(folder / "pepper.key", 12345, 12345)
    with pytest.raises(InvalidSettingError, match="another account"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\n", b"short\n", b"x" * 5_000])
def test_a_file_that_is_no_key_is_refused_and_kept(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True, mode=0o700)
    file = folder / "pepper.key"
    file.touch(mode=0o600)
    file.write_bytes(content)
    with pytest.raises(InvalidSettingError, match="a key has 32"):
        load(folder)
    assert file.read_bytes() == content


def test_random_bytes_are_a_key_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    content = b"\n" + bytes(range(128, 160)) + b"\n"
    file.write_bytes(content)
    assert load(None, COMMANDBUS_PEPPER_FILE=str(file)) == content


def test_a_mounted_secret_may_be_readable_but_not_writable(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(TEXT)
    file.chmod(0o444)
    assert load(None, COMMANDBUS_PEPPER_FILE=str(file)) == TEXT.encode()
    file.chmod(0o666)
    with pytest.raises(InvalidSettingError, match="can write"):
        load(None, COMMANDBUS_PEPPER_FILE=str(file))


def test_a_named_file_must_be_there_and_be_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path / "missing", tmp_path, pipe):
        with pytest.raises(
            InvalidSettingError, match=r"cannot read .* which COMMANDBUS_PEPPER_FILE names"
        ):
            load(None, COMMANDBUS_PEPPER_FILE=str(path))


def test_two_sources_of_one_key_are_refused() -> None:
    with pytest.raises(InvalidSettingError, match="both set"):
        load(None, COMMANDBUS_PEPPER=TEXT, COMMANDBUS_PEPPER_FILE="somewhere")


def test_a_short_variable_is_refused_without_its_value() -> None:
    with pytest.raises(InvalidSettingError, match="holds 5 bytes") as caught:
        load(None, COMMANDBUS_PEPPER="s3cre")
    assert "s3cre" not in str(caught.value)


def test_an_empty_variable_is_none(folder: Path) -> None:
    assert load(folder, COMMANDBUS_PEPPER="", COMMANDBUS_PEPPER_FILE="") == load(folder)


def test_a_folder_that_cannot_be_made_says_how_to_share_a_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSettingError, match="COMMANDBUS_PEPPER_FILE"):
        load(tmp_path / "file" / "below")


def test_what_went_wrong_can_be_read_although_texts_are_redacted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").touch(mode=0o666)
    (tmp_path / "open").chmod(0o666)
    for options in (
        {"COMMANDBUS_KEYS_FOLDER": str(tmp_path / "file" / "below")},
        {"COMMANDBUS_TOKEN_PEPPER_FILE": str(tmp_path / "missing")},
        {"COMMANDBUS_TOKEN_PEPPER_FILE": str(tmp_path / "open")},
        {"COMMANDBUS_TOKEN_PEPPER_FILE": "x", "COMMANDBUS_TOKEN_PEPPER": TEXT},
        {"COMMANDBUS_TOKEN_PEPPER": "s3cre"},
    ):
        with pytest.raises(InvalidSettingError) as caught:
            Keys.load("token_pepper", environ=options)
        assert redact_text(str(caught.value), 2_000) == str(caught.value)


def test_the_default_folder_is_that_of_the_configuration(tmp_path: Path) -> None:
    made = load(None, XDG_CONFIG_HOME=str(tmp_path), HOME="nowhere")
    assert made == (tmp_path / "commandbus" / "pepper.key").read_bytes().strip()
    at_home = load(None, XDG_CONFIG_HOME="relative", HOME=str(tmp_path))
    assert at_home == (tmp_path / ".config" / "commandbus" / "pepper.key").read_bytes().strip()


def test_an_account_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    for home in ("", "/", "relative"):
        with pytest.raises(InvalidSettingError, match="COMMANDBUS_KEYS_FOLDER"):
            load(None, HOME=home)
        assert load(None, HOME=home, allow_create=False) is None


def test_the_home_of_another_account_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    assert os.geteuid() != tmp_path.stat().st_uid
    with pytest.raises(InvalidSettingError, match="no home folder"):
        load(None, HOME=str(tmp_path))


def test_a_key_is_in_no_text_but_works_as_bytes() -> None:
    key = load(None, COMMANDBUS_PEPPER=TEXT)
    assert key is not None
    for text in (repr(key), str(key), f"{key}", f"{[key]}"):
        assert TEXT not in text
    assert hmac.digest(key, b"m", "sha256") == hmac.digest(TEXT.encode(), b"m", "sha256")
    assert key.fingerprint == Key(TEXT.encode()).fingerprint != Key(TEXT.encode()[1:]).fingerprint
    assert len(key.fingerprint) == 16


@pytest.mark.parametrize("name", ["", "../x", "Pepper", "a/b", "a b", "a\n"])
def test_a_name_of_a_key_is_a_plain_word(name: str, folder: Path) -> None:
    with pytest.raises(InvalidSettingError, match="no name of a key"):
        Keys.load(name, folder=folder)


def test_where_a_key_is_looked_for_can_be_shown(folder: Path) -> None:
    assert Keys.place("pepper", folder=folder, environ={}) == str(folder / "pepper.key")
    assert Keys.place("pepper", environ={"COMMANDBUS_PEPPER_FILE": "x"}) == "COMMANDBUS_PEPPER_FILE"

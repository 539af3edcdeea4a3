"""The map of shards: what it says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from commandbus.errors import InvalidSettingError
from commandbus.shards import ShardMap

SECRET = "postgresql://app:hunter2@db/app"


def test_map_names_the_shard_of_a_domain_and_the_default_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shards.toml"
    file.write_text(
        'default = "main"\n[shards]\nmain = "host=a"\nbig = { env = "BIG" }\n'
        '[domains]\npayments = "big"\n'
    )
    monkeypatch.setenv("BIG", SECRET)
    monkeypatch.setenv("COMMANDBUS_SHARDS", str(file))
    shards = ShardMap.from_env()
    assert (shards.shard_of("payments"), shards.shard_of("mail")) == ("big", "main")
    assert shards.shards["big"] == SECRET
    assert "hunter2" not in repr(shards)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no shards"),
        ("[shards", "not TOML"),
        ("shard = 1", "unknown parts"),
        ("shards = 1", "are tables"),
        ('[shards]\nMain = "x"', "small letters"),
        ("[shards]\nmain = 5", "no address"),
        ('[shards]\nmain = " "', "no address"),
        ('[shards]\nmain = { env = "COMMANDBUS_NO_SUCH" }', "is not set"),
        (f'[shards]\na = "{SECRET}"\nb = "{SECRET}"', "same address"),
        (f'default = "b"\n[shards]\na = "{SECRET}"', "none of: a"),
        (f'default = ["a"]\n[shards]\na = "{SECRET}"', "none of: a"),
        (f'[shards]\na = "{SECRET}"\n[domains]\npayments = "b"', "none of: a"),
    ],
)
def test_map_says_what_is_wrong_and_no_address(text: str, says: str) -> None:
    with pytest.raises(InvalidSettingError, match=says) as raised:
        ShardMap.from_text(text)
    assert "hunter2" not in str(raised.value)


def test_map_refuses_a_domain_without_a_shard_when_there_is_no_default() -> None:
    with pytest.raises(InvalidSettingError, match="names no shard for domain 'mail'"):
        ShardMap({"a": "host=a"}, {"payments": "a"}).shard_of("mail")


def test_map_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="No such file"):
        ShardMap.from_file(tmp_path / "none.toml")


def test_what_belongs_to_no_domain_is_on_the_home_shard_the_default_or_the_first() -> None:
    shards = {"one": "host=a", "two": "host=b", "three": "host=c"}
    assert ShardMap(shards, {}, "two", home="three").home_shard == "three"
    assert ShardMap(shards, {}, "two").home_shard == "two"
    assert ShardMap(shards).home_shard == "one"
    with pytest.raises(InvalidSettingError, match="what belongs to no domain is on shard 'four'"):
        ShardMap(shards, home="four")

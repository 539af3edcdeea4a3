"""The map: which domain is in which database."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from commandbus.errors import InvalidSettingError
from commandbus.names import check_domain

MAP_VARIABLE = "COMMANDBUS_SHARDS"

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_PARTS = frozenset({"version", "default", "home", "shards", "domains"})
#: The largest version; a whole number of the database.
_MOST = 2**31 - 1
_HOW = 'write [shards] with name = "address" or name = { env = "VARIABLE" }, and [domains]'


@dataclass(frozen=True, slots=True)
class ShardMap:
    """Shards by name, the shard of each domain, and that of all other domains.

    Addresses may hold passwords, so no text of a map and no error shows one.
    """

    shards: Mapping[str, str] = field(repr=False)
    domains: Mapping[str, str] = field(default_factory=dict)
    #: The shard of the domains that are not named; None: they are refused.
    default: str | None = None
    #: Grows with each change; the databases refuse an older map, and another one of their version.
    version: int = 1
    #: The shard that has what belongs to no domain: API tokens, the count of all requests.
    #: None: the default, or the first one.
    home: str | None = None

    def __post_init__(self) -> None:
        """Refuse a map that cannot be meant."""
        if type(self.version) is not int or not 1 <= self.version <= _MOST:
            raise InvalidSettingError(
                f"the version of the map is {self.version!r}; use a whole number from 1 on"
            )
        if not self.shards:
            raise InvalidSettingError(f"the map has no shards; {_HOW}")
        seen: dict[str, str] = {}
        given: Mapping[Any, Any] = self.shards  # from Python anything may come
        for name, address in given.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise InvalidSettingError(
                    f"shard {name!r}: a name has small letters, digits, - and _, a letter first"
                )
            if not isinstance(address, str) or not address.strip():
                raise InvalidSettingError(f"shard {name!r} has no address; {_HOW}")
            # One database under two names would be counted twice by every read over all shards.
            if address in seen:
                raise InvalidSettingError(
                    f"shards {seen[address]!r} and {name!r} have the same address; keep one"
                )
            seen[address] = name
        for domain, shard in self.domains.items():
            self._check_known(shard, f"domain {check_domain(domain)!r}")
        if self.default is not None:
            self._check_known(self.default, "the default")
        if self.home is not None:
            self._check_known(self.home, "what belongs to no domain")

    def _check_known(self, shard: object, who: str) -> None:
        if not isinstance(shard, str) or shard not in self.shards:
            known = ", ".join(sorted(self.shards))
            raise InvalidSettingError(f"{who} is on shard {shard!r}, which is none of: {known}")

    @property
    def home_shard(self) -> str:
        """The shard that has what belongs to no domain."""
        return self.home or self.default or next(iter(self.shards))

    def find(self, domain: str) -> str | None:
        """The shard that a domain is on; None: on none."""
        return self.domains.get(domain, self.default)

    def shard_of(self, domain: str) -> str:
        """The shard that a domain is on."""
        found = self.find(check_domain(domain))
        if found is None:
            raise InvalidSettingError(
                f"the map names no shard for domain {domain!r}; add it to [domains], or set default"
            )
        return found

    @classmethod
    def from_file(cls, file: str | Path) -> Self:
        """Read a TOML file."""
        try:
            text = Path(file).read_text(encoding="utf-8")
        except OSError as error:
            why = error.strerror or "it cannot be read"
            raise InvalidSettingError(f"the map of shards {file}: {why}") from None
        except UnicodeDecodeError:
            raise InvalidSettingError(f"the map of shards {file} is not UTF-8") from None
        return cls.from_text(text)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read TOML: `version`, `default`, `home`, [shards] and [domains]."""
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            # Its text has places and single characters, never a value; not so the cause.
            raise InvalidSettingError(f"the map of shards is not TOML: {error}") from None
        if unknown := sorted(found.keys() - _PARTS):
            raise InvalidSettingError(f"the map of shards has unknown parts {unknown}; {_HOW}")
        shards, domains = found.get("shards", {}), found.get("domains", {})
        if not isinstance(shards, dict) or not isinstance(domains, dict):
            raise InvalidSettingError(f"[shards] and [domains] are tables; {_HOW}")
        addresses = {name: _address(name, value) for name, value in shards.items()}
        version, home = found.get("version", 1), found.get("home")
        return cls(addresses, domains, found.get("default"), version, home)

    @classmethod
    def from_env(cls) -> Self:
        """Read the file that COMMANDBUS_SHARDS names."""
        file = os.environ.get(MAP_VARIABLE)
        if not file:
            raise InvalidSettingError(f"{MAP_VARIABLE} is not set; it names the map of shards")
        return cls.from_file(file)


def _address(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.keys() == {"env"} and isinstance(value["env"], str):
        found = os.environ.get(value["env"])
        if not found:
            raise InvalidSettingError(f"shard {name!r}: the variable {value['env']} is not set")
        return found
    raise InvalidSettingError(f"shard {name!r} has no address; {_HOW}")

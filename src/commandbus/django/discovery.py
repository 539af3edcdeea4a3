"""The handlers of a project: those that the apps have in their module `handlers`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import import_string

from commandbus.django.conf import NAME, Configuration, configuration
from commandbus.django.hygiene import around, is_async
from commandbus.django.provider import DjangoTransaction
from commandbus.errors import InvalidSettingError
from commandbus.handlers.drafts import HandlerDraft
from commandbus.handlers.router import Handlers, origin_of
from commandbus.middleware.base import Middleware
from commandbus.middleware.chain import check_middleware


def gathered() -> Handlers:
    """All handlers of the project, as a bus includes them: made anew each time."""
    found = configuration()
    provider = DjangoTransaction(found.database)
    app = Handlers(middleware=middleware_of(found))
    app.around_sends = app._middleware
    plain = Handlers()
    plain.include(*_handlers(found.handlers_module))
    app.include(plain._changed(partial(_on_django, provider)))
    if has_tasks():
        from commandbus.django.running import include_tasks

        include_tasks(app, found.database)
    return app


def has_tasks() -> bool:
    """Whether TASKS names a backend of ours, or one that is made from it."""
    wanted = [str(each.get("BACKEND", "")) for each in getattr(settings, "TASKS", {}).values()]
    # Django's own backends need no look; anything else may be a subclass of ours.
    return any(not name.startswith(("django.", "django_tasks.")) for name in wanted)


def import_handlers() -> None:
    """Import the modules, so that a mistake in one shows when the project starts."""
    for _ in _modules(configuration().handlers_module):
        pass


def domains() -> list[str]:
    """The domains that have handlers."""
    return gathered().domains


def _on_django(provider: DjangoTransaction, draft: HandlerDraft) -> HandlerDraft:
    """A `def` handler with `transactional=True` works in `atomic`, on Django's connection.

    What is around that looks after the connection; around all others the hygiene does.
    """
    given = draft.options.get("transactional")
    if given is True and not is_async(draft.handler):
        options = draft.options.copy()
        options["transactional"] = provider
        return replace(draft, options=options)
    return draft if given else replace(draft, handler=around(draft.handler))


def _handlers(name: str) -> list[Handlers]:
    found: dict[int, Handlers] = {}
    for module in _modules(name):
        for value in vars(module).values():
            if isinstance(value, Handlers):
                found[id(value)] = value
    return _not_included(list(found.values()))


def _not_included(found: list[Handlers]) -> list[Handlers]:
    """Without those whose handlers another one of them has taken: `include` copies."""
    kept = list(found)
    for part in found:
        if any(_has_all(other, part) for other in kept if other is not part):
            kept.remove(part)
    return kept


def _has_all(other: Handlers, part: Handlers) -> bool:
    if not part.domains:
        return False  # it has resources and hooks only, which may be taken twice
    has = {(draft.domain, draft.command_type): draft.handler for draft in other.drafts}
    is_larger = len(has) > len(part.drafts) or other._domain is None
    return (
        is_larger
        and _origins(part) <= _origins(other)
        and all(
            has.get((draft.domain, draft.command_type)) is draft.handler for draft in part.drafts
        )
    )


def _origins(app: Handlers) -> set[tuple[str, int]]:
    return {(domain, id(origin_of(finder))) for domain, finder in app.finders.items()}


def _modules(name: str) -> Iterator[ModuleType]:
    for config in apps.get_app_configs():
        path = f"{config.name}.{name}"
        # Looked for first: an ImportError inside the module must not be taken for its absence.
        if config.name != "commandbus.django" and _is_there(path):
            yield importlib.import_module(path)


def _is_there(path: str) -> bool:
    try:
        return find_spec(path) is not None
    except ModuleNotFoundError as error:
        # `bus.handlers` is looked for in a package `bus` of each app, and few have one.
        if error.name is not None and path.startswith(f"{error.name}."):
            return False
        raise


def middleware_of(found: Configuration) -> tuple[Middleware, ...]:
    """The middleware of the setting, each made; raises InvalidSettingError."""
    made = [_middleware(each) for each in found.middleware]
    return check_middleware(made, f"the setting {NAME}")


def _middleware(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        found = import_string(given)
    except ImportError as error:
        raise InvalidSettingError(f"{NAME}['MIDDLEWARE'] has {given!r}: {error}") from error
    return found() if isinstance(found, type) else found

"""LazyScope: a scope of Sentry that is made when something looks at it, which most commands never
do: a scope is dear, and one for each command has nothing in it but copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commandbus.extras import extra
from commandbus.middleware.base import Call

with extra("sentry", "the middleware Sentry"):
    from sentry_sdk.scope import Scope

Describe = Callable[[Call, Scope], None]

_OWN = frozenset({"_call", "_describe", "_origin"})
_new = object.__new__


class LazyScope(Scope):
    """A fork of another scope, as far as anybody can tell.

    Its attributes are slots, and Python asks `__getattr__` only for those that have no value yet.
    """

    __slots__ = ("_call", "_describe", "_origin")
    _origin: Scope
    _describe: Describe | None
    _call: Call | None

    @staticmethod
    def pair(
        isolation: Scope, current: Scope, describe: Describe | None, call: Call | None
    ) -> tuple[LazyScope, LazyScope]:
        """Forks of both; `describe` writes what belongs to the call into the first, once made."""
        first = _new(LazyScope)  # without the work of `__init__`
        first._origin = isolation
        first._describe = describe
        first._call = call
        second = _new(LazyScope)
        second._origin = current
        second._describe = second._call = None
        return first, second

    def __getattr__(self, name: str) -> Any:
        """Called for what has no value: make the scope, then it has one."""
        if name in _OWN:  # a copy of a lazy scope is an ordinary one
            raise AttributeError(name)
        if name == "client":  # asked for all the time, and no reason to make anything
            return self._origin.client
        made = self._origin.fork()
        if self._describe is not None and self._call is not None:
            self._describe(self._call, made)
        for each in _attributes(made):
            if not _has(self, each):  # what was set before anything was read stays
                setattr(self, each, getattr(made, each))
        return object.__getattribute__(self, name)


def _attributes(scope: Scope) -> set[str]:
    slots = {name for kind in type(scope).__mro__ for name in getattr(kind, "__slots__", ())}
    return {name for name in (*slots, *getattr(scope, "__dict__", ())) if _has(scope, name)} - _OWN


def _has(scope: Scope, name: str) -> bool:
    """Whether it has a value; `hasattr` would make the scope."""
    try:
        object.__getattribute__(scope, name)
    except AttributeError:
        return False
    return True

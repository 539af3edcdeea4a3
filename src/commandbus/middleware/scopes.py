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
#: What a scope may have that another one without anything in it has not.
_INCIDENTAL = frozenset({"_last_event_id", "_type", "client"})

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
    def of(origin: Scope, describe: Describe | None, call: Call | None) -> LazyScope:
        """A fork; `describe` writes what belongs to the call into it, once it is made."""
        scope = _new(LazyScope)  # without the work of `__init__`
        scope._origin = origin
        scope._describe = describe
        scope._call = call
        return scope

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


def is_blank(scope: Scope) -> bool:
    """Whether nothing was ever noted in a scope: then a new one is as good as a fork of it."""
    new = Scope(ty=scope._type)
    names = _attributes(scope) | _attributes(new)
    if not all(_has(each, name) for each in (scope, new) for name in names):
        return False
    return (
        type(scope) is Scope
        and type(scope.client) is type(new.client)
        and all(getattr(scope, name) == getattr(new, name) for name in names - _INCIDENTAL)
    )


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

"""Options and arguments as data: declared once, for both doors of the program.

`commandbus` is in every installation, Typer only where the extra `cli` is. What the core door
(`core`) offers as well declares its options with this module; Typer's own form is accepted too, for
what only Typer offers. A parameter whose type is a data class is a group of options: each of its
fields is one option, or again a group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Declared:
    """An option if it has flags, otherwise an argument."""

    flags: tuple[str, ...]
    help: str
    metavar: str | None = None
    #: The variable of the environment that it is read from if it is not given.
    envvar: str | None = None


def option(
    *flags: str,
    help: str,  # noqa: A002  (as Typer calls it)
    metavar: str | None = None,
    envvar: str | None = None,
) -> Declared:
    """An option, by its flags."""
    return Declared(flags, help, metavar, envvar)


def argument(*, metavar: str, help: str) -> Declared:  # noqa: A002
    """An argument, by its place."""
    return Declared((), help, metavar)


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a command, with their annotations resolved."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def flattened(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """One parameter for each option; those of a group one by one."""
    kind = parameter.annotation
    if not is_dataclass(kind):
        return [parameter.replace(kind=parameter.KEYWORD_ONLY)]
    hints = get_type_hints(kind, include_extras=True)
    return [
        option
        for spec in fields(kind)
        for option in flattened(
            inspect.Parameter(
                spec.name,
                parameter.KEYWORD_ONLY,
                default=parameter.empty if spec.default is MISSING else spec.default,
                annotation=hints[spec.name],
            )
        )
    ]


def value_of(name: str, kind: Any, given: dict[str, Any]) -> Any:
    """An option as the function takes it: those of a group together."""
    if not is_dataclass(kind):
        return given[name]
    hints = get_type_hints(kind)
    values = {each: value_of(each, hints[each], given) for each in hints}
    return cast("type[Any]", kind)(**values)


def declaration_of(parameter: inspect.Parameter) -> tuple[Any, Declared | None]:
    """The type of an option, and how it is declared; None if it is in Typer's form."""
    if get_origin(parameter.annotation) is not Annotated:
        return parameter.annotation, None
    kind, *notes = get_args(parameter.annotation)
    return kind, next((note for note in notes if isinstance(note, Declared)), None)


def for_typer(parameter: inspect.Parameter) -> inspect.Parameter:
    """The same parameter, declared as Typer wants it."""
    import typer

    kind, found = declaration_of(parameter)
    if found is None:
        return parameter
    info: Any = (
        typer.Option(*found.flags, metavar=found.metavar, help=found.help, envvar=found.envvar)
        if found.flags
        else typer.Argument(metavar=found.metavar, help=found.help)
    )
    return parameter.replace(annotation=Annotated[kind, info])

"""Every statement that the package sends, found by looking at its modules."""

from __future__ import annotations

import importlib
import pkgutil

import commandbus

#: The demo; and what Django loads for itself, which needs a project.
LEFT_OUT = (
    "commandbus.demo",
    "commandbus.django.admin",
    "commandbus.django.migrations",
    "commandbus.django.models",
    "commandbus.django.working",
)


def statements() -> dict[str, str]:
    """The statements by the names of their modules and constants, but those of the demo."""
    found = {}
    for module in pkgutil.walk_packages(commandbus.__path__, "commandbus."):
        if module.name.endswith("__main__") or module.name.startswith(LEFT_OUT):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if name.isupper() and isinstance(value, str) and "{schema}." in value:
                found[f"{module.name}:{name}"] = value
    return found

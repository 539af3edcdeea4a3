"""Every statement that the package sends, found by looking at its modules."""

from __future__ import annotations

import importlib
import pkgutil

import commandbus


def statements() -> dict[str, str]:
    """The statements by the names of their modules and constants, but those of the demo."""
    found = {}
    for module in pkgutil.walk_packages(commandbus.__path__, "commandbus."):
        # The integration of Django has no statements, and needs the settings of a project.
        if module.name.endswith("__main__") or module.name.startswith(
            ("commandbus.demo", "commandbus.django")
        ):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, str) and "{schema}." in value and name.isupper():
                found[f"{module.name}:{name}"] = value
    return found

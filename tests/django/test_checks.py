"""What is wrong with the setting is said by `manage.py check`, whatever it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.django.sites import manage

NOWHERE = "host=nowhere dbname=nothing user=nobody"


@pytest.mark.parametrize(
    ("bus", "said"),
    [
        ({"DATABSE": "default"}, "unknown key 'DATABSE'"),
        ({"DATABASE": "other"}, "DATABASES has default"),
        ({"SETTINGS": {"max_send_many": "x"}}, "max_send_many"),
        ({"MIDDLEWARE": ["shop.nothing.Nothing"]}, "shop.nothing.Nothing"),
        ({"MIDDLEWARE": ["shop.models.Order"]}, "no Middleware"),
    ],
)
def test_a_wrong_setting_is_an_error_of_the_checks(bus: dict[str, Any], said: str) -> None:
    done = manage(NOWHERE, "check", bus=bus)
    assert done.returncode == 1
    assert "commandbus.E001" in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    called = manage(NOWHERE, "commandbus", "worker", bus=bus)
    assert (called.returncode, "Traceback" in called.stderr) == (2, False)

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
        ({"SETTINGS": {"shutdown_grace": 1}}, "did you mean 'shutdown_grace_seconds'?"),
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


def test_handlers_may_be_in_a_package_that_few_apps_have() -> None:
    done = manage(NOWHERE, "check", bus={"HANDLERS_MODULE": "nothing.handlers"})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_wrong_option_of_tasks_is_an_error_of_the_checks_though_no_task_is_imported() -> None:
    wrong = {
        "retry_policy": {"max_attempts": "x"}, "transactional": "no", "modules": "shop",
        "database": "nowhere", "domain": 5, "retry": 3,
    }  # fmt: skip
    done = manage(NOWHERE, "check", tasks={"odd": wrong, "typo": {"retry_policy": {"tries": 2}}})
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if "commandbus.E010" in line]
    assert len(said) == len(wrong) + 1, done.stderr
    for words in [
        "max_attempts is 'x'", "transactional 'no'", "modules 'shop'", "DATABASES has default",
        "domain 5", "unknown option 'retry'", "unknown field 'tries'",
    ]:  # fmt: skip
        assert words in done.stderr
    called = manage(NOWHERE, "commandbus", "worker", tasks={"typo": {"retry": 3}})
    assert (called.returncode, "Traceback" in called.stderr) == (2, False), called.stderr
    assert "unknown option 'retry'" in called.stderr

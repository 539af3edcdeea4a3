"""`call_command("commandbus", …)`: the program inside a process that goes on."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from unittest import mock

from django.core.management import CommandError, call_command
from django.test import override_settings

from commandbus import new_id
from commandbus.django import bus
from commandbus.django.test import CommandBusTransactionTestCase, sent


class Calling(CommandBusTransactionTestCase):
    def setUp(self) -> None:
        changed = mock.patch.dict(os.environ, {"COMMANDBUS_DSN": "elsewhere"})
        changed.start()
        self.addCleanup(changed.stop)
        self.before = (list(sys.argv), dict(os.environ), logging.getLogger().handlers[:])

    def assert_unchanged(self) -> None:
        now = (list(sys.argv), dict(os.environ), logging.getLogger().handlers[:])
        self.assertEqual(now, self.before)

    def test_a_command_that_succeeds_returns_and_leaves_nothing_behind(self) -> None:
        bus.send("shop", "Note", new_id(), {"number": "1"})
        call_command("commandbus", "worker", "-d", "shop", "--until-empty")
        self.assertEqual([each.status for each in sent("shop")], ["COMPLETED"])
        told = StringIO()
        with redirect_stdout(told):
            call_command("commandbus", "list", "-d", "shop", "--json")
        self.assertIn("COMPLETED", told.getvalue())
        self.assert_unchanged()

    def test_one_that_fails_is_a_command_error(self) -> None:
        for words in (["show", str(new_id())], ["worker", "--nonsense"], ["nonsense"]):
            with self.assertRaises(CommandError, msg=words) as caught:
                call_command("commandbus", *words)
            self.assertGreater(caught.exception.returncode, 0, words)
        self.assert_unchanged()

    @override_settings(COMMANDBUS={"DATABSE": "default"})
    def test_a_wrong_setting_is_a_command_error(self) -> None:
        with self.assertRaisesMessage(CommandError, "DATABSE"):
            call_command("commandbus", "list")
        self.assert_unchanged()

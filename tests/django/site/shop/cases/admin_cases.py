"""The bus in Django's admin."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import TestCase
from django.urls import reverse

from commandbus import new_id
from commandbus.django import bus
from commandbus.django.models import Command, FailureGroup, ParkedCommand
from commandbus.django.test import drain
from shop.models import Order

LISTS = ("command", "parkedcommand", "failuregroup", "batch", "auditevent")


class Admin(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        cls.boss = User.objects.create_superuser("boss", password="secret")
        cls.viewer = User.objects.create_user("viewer", password="secret", is_staff=True)
        for model in LISTS:
            cls.viewer.user_permissions.add(Permission.objects.get(codename=f"view_{model}"))

    def park(self, count: int = 1) -> list[Any]:
        ids = [
            bus.send("shop", "Note", new_id(), {
                "number": f"{new_id()}", "is_wrong": True, "password": "canary-4711",
                "note": "seen by those who may",
            })
            for _ in range(count)
        ]  # fmt: skip
        drain()
        return ids

    def act(self, model: str, action: str, rows: list[Any], **more: str) -> Any:
        data = {"action": action, "_selected_action": [str(row) for row in rows], **more}
        return self.client.post(reverse(f"admin:commandbus_{model}_changelist"), data, follow=True)

    def status(self, command_id: object) -> str:
        return str(Command.objects.get(command_id=command_id).status)

    def test_all_lists_and_pages_can_be_looked_at_and_not_changed(self) -> None:
        (command_id,) = self.park()
        self.client.force_login(self.boss)
        for model in LISTS:
            answer = self.client.get(reverse(f"admin:commandbus_{model}_changelist"))
            self.assertEqual(answer.status_code, 200, model)
            added = self.client.get(reverse(f"admin:commandbus_{model}_add"))
            self.assertEqual(added.status_code, 403)
        page = reverse("admin:commandbus_command_change", args=[command_id])
        listed = self.client.get(reverse("admin:commandbus_command_changelist"))
        self.assertContains(listed, f'href="{page}')
        self.assertEqual(self.client.get(page).status_code, 200)
        self.assertEqual(self.client.post(page, {"status": "COMPLETED"}).status_code, 403)
        self.assertEqual(self.status(command_id), "IN_TROUBLESHOOTING_QUEUE")
        wrong = reverse("admin:commandbus_command_change", args=["no-id"])
        self.assertEqual(self.client.get(wrong).status_code, 302)

    def test_a_payload_is_masked_and_only_for_those_who_may_see_it(self) -> None:
        (command_id,) = self.park()
        page = reverse("admin:commandbus_command_change", args=[command_id])
        self.client.force_login(self.boss)
        shown = self.client.get(page).content.decode()
        self.assertIn("seen by those who may", shown)
        self.assertNotIn("canary-4711", shown)
        self.client.force_login(self.viewer)
        shown = self.client.get(page).content.decode()
        self.assertNotIn("seen by those who may", shown)
        self.assertIn("MOVED_TO_TROUBLESHOOTING_QUEUE", shown)

    def test_a_user_without_the_permission_cannot_act(self) -> None:
        ids = self.park()
        self.client.force_login(self.viewer)
        answer = self.act("parkedcommand", "retry_selected", ids)
        self.assertEqual(answer.status_code, 200)
        self.assertEqual(self.status(ids[0]), "IN_TROUBLESHOOTING_QUEUE")
        self.viewer.user_permissions.add(Permission.objects.get(codename="operate"))
        self.act("parkedcommand", "retry_selected", ids)
        self.assertEqual(self.status(ids[0]), "PENDING")
        trail = bus.get_audit_trail("shop", ids[0])
        self.assertEqual((trail[-1].event_type, trail[-1].actor), ("OPERATOR_RETRY", "viewer"))

    def test_a_selection_is_canceled_or_completed_with_a_reason(self) -> None:
        first, second, third = self.park(3)
        self.client.force_login(self.boss)
        answer = self.act("parkedcommand", "cancel_selected", [first])
        self.assertContains(answer, "Say why")
        self.act("parkedcommand", "cancel_selected", [first], reason="a duplicate")
        self.act("parkedcommand", "complete_selected", [second], reason="done by hand")
        states = [self.status(each) for each in (first, second, third)]
        self.assertEqual(states, ["CANCELED", "COMPLETED", "IN_TROUBLESHOOTING_QUEUE"])
        self.assertEqual(ParkedCommand.objects.count(), 1)

    def test_a_pending_command_is_canceled_and_another_is_refused(self) -> None:
        (parked,) = self.park()
        pending = bus.send("shop", "Note", new_id(), {"number": "1"})
        self.client.force_login(self.boss)
        answer = self.act("command", "cancel_selected", [pending, parked], reason="not needed")
        self.assertContains(answer, "1 commands were canceled")
        self.assertEqual(self.status(pending), "CANCELED")
        self.assertEqual(self.status(parked), "IN_TROUBLESHOOTING_QUEUE")

    def test_a_group_is_retried_as_a_whole(self) -> None:
        self.park(25)
        (group,) = FailureGroup.objects.all()
        self.assertEqual(group.parked_count, 25)
        self.client.force_login(self.boss)
        answer = self.act("failuregroup", "retry_group", [group.fingerprint])
        self.assertContains(answer, "retry of 25 commands, 25 are done")
        self.assertEqual(ParkedCommand.objects.count(), 0)
        self.assertEqual(Command.objects.filter(status="PENDING").count(), 25)

    def test_a_group_is_canceled_or_completed_with_a_reason(self) -> None:
        self.client.force_login(self.boss)
        for action, status in (("cancel_group", "CANCELED"), ("complete_group", "COMPLETED")):
            ids = self.park(3)
            (group,) = FailureGroup.objects.filter(parked_count__gt=0)
            self.act("failuregroup", action, [group.fingerprint])
            self.assertEqual(self.status(ids[0]), "IN_TROUBLESHOOTING_QUEUE")
            self.act("failuregroup", action, [group.fingerprint], reason="decided")
            self.assertEqual({self.status(each) for each in ids}, {status})

    def test_an_id_finds_its_command_and_its_relatives(self) -> None:
        command_id = bus.send("shop", "Note", new_id(), {"number": "1"})
        bus.send("shop", "Note", new_id(), {"number": "2"})
        self.client.force_login(self.boss)
        address = reverse("admin:commandbus_command_changelist")
        found = self.client.get(address, {"q": str(command_id)})
        self.assertContains(found, "1 command")
        self.assertContains(self.client.get(address, {"q": "Note"}), "0 commands")

    def test_an_id_of_two_domains_is_not_acted_on(self) -> None:
        same = new_id()
        for domain in ("shop", "other"):
            bus.send(domain, "Note", same, {"number": "1"})
        self.client.force_login(self.boss)
        answer = self.act("command", "cancel_selected", [same], reason="which one?")
        self.assertContains(answer, "an id of several domains")
        self.assertEqual({each.status for each in Command.objects.all()}, {"PENDING"})

    def test_models_cannot_be_written(self) -> None:
        bus.send("shop", "Note", new_id(), {"number": "1"})
        command = Command.objects.get()
        for act in (command.save, command.delete):
            with self.assertRaisesMessage(TypeError, "verbs"):
                act()
        self.assertEqual(Order.objects.count(), 0)
        self.assertIn("shop Note", str(command))

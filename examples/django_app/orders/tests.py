"""Tests without a worker, and one with a real one."""

from django.test import TestCase

from commandbus.django.test import (
    CommandBusTransactionTestCase,
    assert_sent,
    drain,
    run_worker,
)
from orders.models import Order
from orders.services import place
from orders.tasks import confirm


class Orders(TestCase):
    def test_an_order_is_paid_and_confirmed(self) -> None:
        order = place("A-1", 20)
        assert_sent("orders", "Pay", {"order": order.pk}, times=1)
        self.assertEqual([each.outcome for each in drain()], ["completed", "completed"])
        order.refresh_from_db()
        self.assertTrue(order.is_paid and order.is_confirmed)

    def test_an_order_without_an_amount_waits_for_an_operator(self) -> None:
        place("A-2", 0)
        self.assertEqual([each.outcome for each in drain()], ["parked"])
        self.assertFalse(Order.objects.get().is_paid)

    def test_a_task_has_a_result(self) -> None:
        order = place("A-3", 20)
        result = confirm.enqueue(order.pk)
        drain()
        result.refresh()
        self.assertEqual(result.return_value, f"order {order.pk} is confirmed")


class WithWorker(CommandBusTransactionTestCase):
    def test_a_real_worker_does_the_same(self) -> None:
        order = place("A-4", 20)
        run_worker("orders")
        run_worker("tasks")
        order.refresh_from_db()
        self.assertTrue(order.is_confirmed)

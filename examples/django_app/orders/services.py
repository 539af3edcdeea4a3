"""What views call."""

from django.db import transaction

from commandbus import new_id
from commandbus.django import bus
from orders.models import Order


def place(number: str, amount: int) -> Order:
    """Store an order and ask for its payment: both, or neither."""
    with transaction.atomic():
        order = Order.objects.create(number=number, amount=amount)
        bus.send("orders", "Pay", new_id(), {"order": order.pk})
    return order

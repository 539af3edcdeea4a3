"""A task, as Django writes it; the worker of the bus runs it."""

from django.tasks import task

from orders.models import Order


@task
def confirm(order: int) -> str:
    Order.objects.filter(pk=order).update(is_confirmed=True)
    return f"order {order} is confirmed"

"""What the worker does: found by itself, because the module has this name."""

from commandbus import Command, HandlerContext, Handlers, PermanentCommandError
from orders.models import Order
from orders.tasks import confirm

handlers = Handlers("orders")


@handlers.handle("Pay", transactional=True)
def pay(command: Command, ctx: HandlerContext) -> None:
    """The row, the task and the completion of the command are one commit."""
    order = Order.objects.select_for_update().get(pk=command.data["order"])
    if order.amount <= 0:
        raise PermanentCommandError("NOTHING_TO_PAY", "the order has no amount")
    order.is_paid = True
    order.save()
    confirm.enqueue(order.pk)

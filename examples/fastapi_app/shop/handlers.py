"""What the worker does. `ctx.conn` is a session: its rows and the completion are one commit."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from pydantic import BaseModel

from commandbus import Command, Fail, HandlerContext, Handlers
from commandbus.transactions import SqlAlchemy
from shop.database import Import, Product, sessions

handlers = Handlers("catalogue")


class AddProduct(BaseModel):
    sku: str
    price: Decimal


@handlers.handle("AddProduct", transactional=SqlAlchemy(sessions))
async def add_product(product: AddProduct, ctx: HandlerContext) -> None:
    if product.price <= 0:
        # An answer for who handed it in, nothing for an operator: FAILED at once, no retry.
        raise Fail("PRICE_IMPOSSIBLE", "a price is above zero")
    await ctx.conn.merge(Product(sku=product.sku, price=product.price))


@handlers.handle("FinishImport", transactional=SqlAlchemy(sessions))
async def finish_import(_: Command, ctx: HandlerContext) -> None:
    # Sent by the commit that ended the batch; its correlation id is the id of the batch.
    found = await ctx.conn.get_one(Import, ctx.correlation_id)
    found.finished_at = datetime.now(UTC)

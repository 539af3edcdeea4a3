"""The tables of the shop, and its sessions. `main.py` binds them to a database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from decimal import Decimal
from typing import Annotated
from uuid import UUID

from fastapi import Depends
from sqlalchemy import DateTime
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Product(Base):
    __tablename__ = "product"

    sku: Mapped[str] = mapped_column(primary_key=True)
    price: Mapped[Decimal]


class Import(Base):
    """A list of products that somebody handed in; its id is that of its batch."""

    __tablename__ = "import"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str]
    finished_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


sessions = async_sessionmaker[AsyncSession](expire_on_commit=False)


async def session() -> AsyncIterator[AsyncSession]:
    async with sessions() as found:
        yield found


SessionDep = Annotated[AsyncSession, Depends(session)]

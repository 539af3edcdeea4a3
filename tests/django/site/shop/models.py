"""What the shop keeps."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, and whether it was paid."""

    number = models.TextField(unique=True)
    paid = models.IntegerField(default=0)

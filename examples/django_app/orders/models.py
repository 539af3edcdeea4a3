"""Orders."""

from django.db import models


class Order(models.Model):
    number = models.CharField(max_length=20, unique=True)
    amount = models.IntegerField()
    is_paid = models.BooleanField(default=False)
    is_confirmed = models.BooleanField(default=False)

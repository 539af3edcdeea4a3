"""No addresses: this example is about what happens behind them."""

urlpatterns: list[object] = []

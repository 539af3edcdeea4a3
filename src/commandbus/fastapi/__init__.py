"""For applications on FastAPI or Starlette: the bus in their lifespan, and in their routes.

app = FastAPI(lifespan=bus_lifespan(dsn, handlers=payments.handlers, workers=["payments"]))
app.mount("/bus", create_app(bus_of_request, auth=TokenAuth.of))

@app.post("/payments")
async def pay(bus: BusDep, session: SessionDep) -> ...:
await bus.send("payments", "DebitAccount", new_id(), {...}, conn=session)
"""

from commandbus.extras import extra

with extra("api", "commandbus.fastapi"):
    from commandbus.fastapi.dependencies import BusDep, bus_of_request
    from commandbus.fastapi.lifespan import bus_lifespan, combine

__all__ = ["BusDep", "bus_lifespan", "bus_of_request", "combine"]

"""BusDep: the bus of the lifespan, in the signature of a route."""

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from commandbus.bus import CommandBus
from commandbus.errors import InvalidOperationError

#: Where the lifespan puts the bus, in the state that every request has.
STATE = "commandbus_bus"


def bus_of_request(request: HTTPConnection) -> CommandBus:
    """The bus that the lifespan of the application has opened."""
    bus = getattr(request.state, STATE, None)
    if not isinstance(bus, CommandBus):
        raise InvalidOperationError(
            "there is no bus in the state of this request; give the application that is served "
            "lifespan=bus_lifespan(…), or combine(bus_lifespan(…), your_own)"
        )
    return bus


#: `bus: BusDep` in the signature of a route.
BusDep = Annotated[CommandBus, Depends(bus_of_request)]

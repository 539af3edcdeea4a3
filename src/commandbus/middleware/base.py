"""What a middleware is, and what it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from commandbus.middleware.guarding import Guard

if TYPE_CHECKING:
    from commandbus.handler import HandlerContext, HandlerEntry
    from commandbus.models import Command

#: Goes on to the next middleware, and in the end to the handler; returns what that returned.
Proceed = Callable[[], Awaitable[Any]]
#: The same in the thread of a `def` handler.
ProceedInThread = Callable[[], Any]
#: What became of a lease, as the worker decided it.
OutcomeName = Literal[
    "completed", "retried", "parked", "failed", "released", "snoozed", "discarded"
]


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How the attempt ends. All texts are redacted already."""

    name: OutcomeName
    #: Of an attempt that failed: TRANSIENT or PERMANENT, the code, and the message.
    error_type: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    #: Of one that is tried again or snoozed: the seconds until then.
    delay_seconds: float = 0.0

    @property
    def is_final(self) -> bool:
        """Whether it failed, and is not tried again by itself."""
        return self.name in {"parked", "failed"}


class Call:
    """One attempt at a command, as all middleware around it see it."""

    # On the class: most attempts end before any of these changes, and to set each costs time.
    #: What left the chain of middleware, if it was an error.
    error: BaseException | None = None
    #: The worker's: whether the handler was called.
    has_proceeded: bool = False
    #: The worker's: how it ended, where that is committed before it is told.
    decided: CallOutcome | None = None
    #: Whether its end is told although it has completed.
    tells_success: bool = True
    #: Whether nothing else runs in its context afterwards: then nothing has to be put back there.
    owns_context: bool = False
    _state: dict[Any, Any] | None = None

    def __init__(
        self,
        command: Command,
        ctx: HandlerContext,
        entry: HandlerEntry,
        run_handler: Proceed | None,
        redact: Callable[[str], str],
    ) -> None:
        self.command = command
        self.ctx = ctx
        self.entry = entry
        #: The worker's: calls the handler; None: it does so itself.
        self.run_handler = run_handler
        self._redact = redact

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self.ctx.attempt

    @property
    def state(self) -> dict[Any, Any]:
        """Where middleware keep what they need again later in this attempt."""
        if self._state is None:
            self._state = {}
        return self._state

    @property
    def has_state(self) -> bool:
        """Whether a middleware has kept something."""
        return bool(self._state)

    def forget(self) -> None:
        """Let go of that: it has ended, and what is kept may know the call."""
        self._state = None

    def redact(self, text: str) -> str:
        """A text without the secrets of this command's payload."""
        return self._redact(text)


class QuietCall(Call):
    """One that has only built-in middleware around it: they say what they want to be told."""

    tells_success = False


class OwnCall(QuietCall):
    """The same, in a task that ends with it."""

    owns_context = True


@dataclass(slots=True)
class Draft:
    """A command that is about to be sent. Only its `meta` can be changed."""

    domain: str
    command_type: str
    command_id: UUID
    #: What travels with the command, beside its data; shown to operators.
    meta: dict[str, str]


@dataclass(slots=True, eq=False)
class Drafts:
    """The commands of one send. They are made one by one, while they are sent."""

    domain: str
    #: How many; None: they come from a generator, and nobody knows yet.
    count: int | None = 1
    #: Whether they are sent together: by `send_many`, or as a batch.
    is_many: bool = False
    _functions: list[Callable[[Draft], None]] = field(default_factory=list, repr=False)

    def each(self, function: Callable[[Draft], None]) -> None:
        """Call `function` with each command before it is sent; it may refuse by raising."""
        self._functions.append(function)

    def apply(self, draft: Draft) -> None:
        """Call all functions, in the order in which they were given."""
        for function in self._functions:
            function(draft)


class Middleware:
    """Around handlers and sends. Override what you need: the rest costs nothing.

    One object is used by all commands at once, some of them in threads: what belongs to one attempt
    goes into `call.state`.
    """

    async def handle(self, call: Call, proceed: Proceed) -> Any:
        """On the event loop, around `async` and `def` handlers: `return await proceed()`.

        What it returns is the result, what it raises is the failure. It may call `proceed` once.
        """
        del call
        return await proceed()

    def handle_in_thread(self, call: Call, proceed: ProceedInThread) -> Any:
        """In the handler's own thread, around `def` handlers only: `return proceed()`."""
        del call
        return proceed()

    def sending(self, drafts: Drafts) -> AbstractContextManager[Any]:
        """A plain context manager around one send; to raise is to refuse it."""
        del drafts
        return nullcontext()

    def on_outcome(self, call: Call, outcome: CallOutcome, error: BaseException | None) -> None:
        """Once it is decided how the attempt ends. Errors are logged, and change nothing.

        `error` is what left the chain of middleware; its texts may contain secrets.
        """


class Surrounding(Middleware):
    """For built-in ones, which only do something before a handler and after it.

    Two calls cost less than a coroutine around each command, and several share one frame, or none.
    Neither may fail a command: the guard has their errors. Where there are no others, `on_outcome`
    is told of attempts that have not completed, and of those whose `tells_success` it has set.
    """

    guard: Guard

    def enter(self, call: Call) -> Any:
        """Before the handler; what it returns is given to `leave`. None: it need not be called."""
        raise NotImplementedError

    def leave(self, call: Call, entered: Any) -> None:
        """After the handler, however it ended."""
        raise NotImplementedError

    async def handle(self, call: Call, proceed: Proceed) -> Any:
        """The same for those who call it by themselves."""
        around = (self,)
        entered = enter_all(around, call)
        try:
            return await proceed()
        finally:
            if entered is not None:
                leave_all(call, entered)


#: The last whose `leave` is to be called, with what its `enter` has returned, and first those that
#: were before it; None: nobody's. A list that grows at its front costs less than tuples of tuples.
Entered = tuple["Entered", Surrounding, Any] | None


def enter_all(around: Sequence[Surrounding], call: Call) -> Entered:
    """What is before a handler, the first outermost."""
    entered: Entered = None
    for each in around:
        try:
            what = each.enter(call)
        except Exception as error:  # noqa: BLE001  (it must not fail a command)
            each.guard.warn(type(error).__name__)
        else:
            if what is not None:
                entered = entered, each, what
    return entered


def leave_all(call: Call, entered: Entered) -> None:
    """What is after it, in the opposite order."""
    while entered is not None:
        entered, each, what = entered
        try:
            each.leave(call, what)
        except Exception as error:  # noqa: BLE001
            each.guard.warn(type(error).__name__)


class WorkerMiddleware(Middleware):
    """For built-in ones, which see what a worker does by itself too."""

    #: Whether `received` is to be called: for most it would be for nothing.
    sees_receives: bool = False

    def own_work(self) -> AbstractContextManager[Any]:
        """Around all that the worker does. Its tasks inherit the context variables."""
        return nullcontext()

    def received(self, domain: str, metas: Sequence[str | None], seconds: float) -> None:
        """Commands were leased, which took so long; what travels with each, as JSON."""

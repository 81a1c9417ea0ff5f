"""Relays a client's connection to the broker, frame by frame: answers may be held, and all else passes."""

from collections.abc import Callable

from gateway.client_side import THROTTLED_MAX_S
from gateway.durable.answer_gate import AnswerGate, HoldingContext
from replication.wire.framed_connection import FramedConnection, run_until_one_ends


async def relay_held(
    context: HoldingContext, client: FramedConnection, broker: FramedConnection, passed: Callable[[], object]
) -> None:
    """Relay until either side ends, and hold answers. `passed` is called whenever something has passed.

    Raises MalformedFrameError for an answer that is not understood.
    """
    gate = AnswerGate(context, broker)

    async def requests() -> None:
        while (frame := await client.read_frame()) is not None:
            gate.forward([frame])
            passed()
            await broker.drain(THROTTLED_MAX_S, client)
            await gate.wait_for_room(client)

    async def answers() -> None:
        while (frame := await gate.next_answer()) is not None:
            client.write_frame(frame)
            passed()
            await client.drain()

    try:
        await run_until_one_ends(requests(), answers())
    finally:
        gate.close()
        passed()

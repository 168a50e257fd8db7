"""Mutants of DRPC's two ends, and of what a broken connection means to a producer."""

from tests.sim.mutants.mutant import mutant

_CLIENT = "millrace.runtime.transport.drpc.client"
_SENDER = "millrace.core.client.producer.sender:Sender"

# fmt: off
MUTANTS = (
    mutant("what a broken stream has not answered counts as written", "P16",
           f"{_SENDER}.on_disconnected",
           "self._on_refused(batch, refusal, now, refused_by=broker_id, pause=False)",
           "self._on_acknowledged(batch, Acknowledged(-1, -1))"),
    mutant("a call whose connection broke has ended well", "P16",
           f"{_CLIENT}:DrpcStream.on_lost",
           "self._end(CallError(Status.UNAVAILABLE, reason))", "self._end(None)"),
    mutant("messages of a call are handed out in another order", "P78",
           "millrace.runtime.transport.drpc.connection:Inbox.put",
           "self._messages.append(message)", "self._messages.insert(self._next, message)"),
    mutant("a packet of a call that has ended goes to the next one", "P78",
           f"{_CLIENT}:DrpcConnection.on_packet",
           "is_current = call is not None and stream == self._last_stream",
           "is_current = call is not None"),
    mutant("a frame is handed over before it is whole", "P78",
           "millrace.runtime.transport.frames:FrameReader.buffer_updated",
           "if self._received == len(payload):", "if self._received:"),
    mutant("who drains closes before it has answered", "P79",
           "millrace.runtime.transport.drpc.server:_ServedConnection.ask_to_go",
           "if self.has_called:", "if False:"),
)
# fmt: on

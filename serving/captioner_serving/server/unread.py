"""Results that nobody has fetched: Gradio keeps them in memory until somebody does.

One may have 200 kB. So a session has few of them, and so have all sessions together: of those in
which nothing is under way, the one with the most loses them, for it will hardly come back.
"""

from __future__ import annotations

from gradio.queueing import Queue
from gradio.utils import LRUCache

from captioner_serving.server.batcher import BusyError

__all__ = ["UnreadResults"]

_SESSIONS = 256  # Gradio's own limit is 2,000
_EACH = 32
_ALL = 512


class UnreadResults:
    """Bounds what waits to be fetched in a queue of Gradio's."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        queue.pending_messages_per_session.max_size = _SESSIONS
        queue.pending_event_ids_session = LRUCache(_SESSIONS)

    def knows(self, session: str) -> bool:
        """Whether there are, or may be, results for a session."""
        return session in self._queue.pending_messages_per_session

    def make_room(self, session: str | None) -> None:
        """See to it that a session's next call has room for its result.

        Raises:
            BusyError: there is none.

        """
        waiting = self._queue.pending_event_ids_session
        if len(waiting.get(session or "", ())) >= _EACH:
            raise BusyError(5, "fetch the results of this session's earlier calls first")
        while sum(map(len, waiting.values())) >= _ALL:
            at_work = self._queue.event_ids_to_events.keys()
            left = [name for name, calls in waiting.items() if calls.isdisjoint(at_work)]
            if not any(waiting[name] for name in left):
                raise BusyError(5, "the calls under way use all the room set aside for results")
            most = max(left, key=lambda name: len(waiting[name]))
            del waiting[most]
            self._queue.pending_messages_per_session.pop(most, None)

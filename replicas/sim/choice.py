"""One choice of an answer: tokens become text, and stop strings end it."""

from array import array
from itertools import accumulate, takewhile

from replicas.engines.protocol import Output
from replicas.sim.answers import Delta
from replicas.sim.request import GenerationParams
from replicas.sim.sequence import Drawn, TextSequence
from replicas.sim.text import piece


class Choice:
    """Follows one sequence. Text that may turn out to be part of a stop string is held back."""

    def __init__(self, sequence: TextSequence, params: GenerationParams, echo: str) -> None:
        self.sequence = sequence
        self.completion_tokens = 0
        self.finish_reason: str | None = None
        self._params = params
        self._pending = ""
        self._echo = echo
        self._shown_chars = 0
        self._said_chars = 0
        self._hold_back_chars = max((len(stop) for stop in params.stop), default=1) - 1

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def accept(self, drawn: Drawn) -> Delta:
        """What to show after one more token; with its `finish_reason`, the last."""
        self.completion_tokens += 1
        self._pending += piece(drawn.token_id)
        delta = Delta(token_ids=[drawn.token_id], offset=self._shown_chars)
        delta.text = self._advance(drawn, delta)
        self._said_chars += len(delta.text)
        if self._echo:
            delta.text, self._echo = self._echo + delta.text, ""
        self._shown_chars += len(delta.text)
        self.finish_reason = delta.finish_reason
        return delta

    def output(self) -> Output:
        """Its ids as far as their whole text was shown."""
        first = self.sequence.prompt_tokens
        output = self.sequence.tokens[first : first + self.completion_tokens]
        ends = accumulate(len(piece(token_id)) for token_id in output)
        seen = sum(1 for _ in takewhile(self._said_chars.__ge__, ends))
        return Output(array("I", output[:seen]).tobytes(), self.completion_tokens)

    def _advance(self, drawn: Drawn, delta: Delta) -> str:
        """Takes the text that is safe to show, and settles why the choice ends if it does."""
        found = self._find_stop()
        if found is not None:
            text, delta.stop_reason = found
            delta.finish_reason = "stop"
            return text
        if drawn.token_id in self._params.stop_token_ids:
            delta.finish_reason, delta.stop_reason = "stop", drawn.token_id
            if not self._params.is_stop_shown:
                self._pending = self._pending.removesuffix(piece(drawn.token_id))
        elif drawn.is_last:
            delta.finish_reason = "stop" if self._params.max_tokens is None else "length"
        return self._take(held_chars=0 if delta.finish_reason else self._hold_back_chars)

    def _find_stop(self) -> tuple[str, str] | None:
        """The text before the earliest stop string, and that string."""
        places = ((self._pending.find(stop), stop) for stop in self._params.stop)
        found = min((place for place in places if place[0] >= 0), default=None)
        if found is None:
            return None
        start, stop = found
        end = start + len(stop) if self._params.is_stop_shown else start
        return self._pending[:end], stop

    def _take(self, held_chars: int) -> str:
        safe_chars = max(len(self._pending) - held_chars, 0)
        text, self._pending = self._pending[:safe_chars], self._pending[safe_chars:]
        return text

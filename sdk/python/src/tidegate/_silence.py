"""The clock of a stream of pictures, without I/O: one that a node has stopped to send looks like one in which nothing happens.

Times are seconds of a clock that does not go back.
"""

from __future__ import annotations

AFTER_S = 1.5
"""A stream is silent after that time without a picture, or after `TIMES` the usual time between two."""
TIMES = 2.5
USUAL_MAX_S = 60.0


class Silence:
    """Says, second after second, how long no picture has come.

    The usual time between two pictures is the shorter of the last two times, or that which is asked for, if it is longer.
    """

    def __init__(self, frames_per_second: float) -> None:
        self.asks(frames_per_second)
        self._waits_since: float | None = None
        self._heard_at: float | None = None
        self._gaps = (0.0, 0.0)
        self._said = 0

    def asks(self, frames_per_second: float) -> None:
        """So many are asked for; 0 for all."""
        self._interval = 1 / frames_per_second if frames_per_second else 0.0

    def heard(self, now: float) -> None:
        """A picture came, or the word that it is unchanged."""
        if self._heard_at is not None:
            self._gaps = (self._gaps[1], now - self._heard_at)
        self._heard_at = now
        self.stop()

    def stop(self) -> None:
        """The program knows why no picture comes, or has one: the clock begins when it waits for the next."""
        self._waits_since, self._said = None, 0

    def wait_s(self, now: float) -> float:
        """Seconds that a program waits for a picture from `now` on before `seconds` is something; it waits since the first call."""
        if self._waits_since is None:
            self._waits_since = now
        usual = min(max(self._interval, min(self._gaps)), USUAL_MAX_S)
        after = max(AFTER_S, TIMES * usual, self._said + 0.5)
        return max(0.0, self._waits_since + after - now)

    def seconds(self, now: float) -> int:
        """Whole seconds without a picture, once `wait_s` is over; each number is said once."""
        if self._waits_since is None or self.wait_s(now) > 0:
            return 0
        self._said = int(now - self._waits_since + 0.5)
        return self._said


def no_picture(seconds: int) -> str:
    """The same words in all that shows or hands over live pictures."""
    return f"no picture for {seconds} s"

"""For how long links by cost are left alone after they were in vain, sans-IO."""

from dataclasses import dataclass

from rlm.write_path.commit.doubling_pause import DoublingPause


@dataclass(frozen=True, slots=True)
class PauseLimits:
    """In seconds; each pause is doubled by each trial in a row that was in vain likewise."""

    min_s: float = 0.2
    max_s: float = 12.8
    """After what had come did not pay, as followers wait for links in it in vain."""
    held_up_s: float = 6.4
    held_up_max_s: float = 51.2
    """After producers were held up. By judgement: what they have sent ahead in such a trial is late, too."""


class LinkPauses:
    """All times are monotonic seconds."""

    def __init__(self, limits: PauseLimits) -> None:
        self._unpaid = DoublingPause(limits.min_s, limits.max_s)
        self._held_up = DoublingPause(limits.held_up_s, limits.held_up_max_s)
        self._paid_in_a_row = 0

    def are_over(self, now_s: float) -> bool:
        """Whether links may be tried."""
        return self._unpaid.is_over(now_s) and self._held_up.is_over(now_s)

    def did_not_pay(self, now_s: float) -> None:
        """What an interval brought was less than pays."""
        self._paid_in_a_row = 0
        self._unpaid.begin(now_s)

    def paid(self) -> None:
        """It was enough. What the first interval brought came inline in part, as before, and tells little."""
        self._paid_in_a_row += 1
        if self._paid_in_a_row > 1:
            self._unpaid.reset()

    def held_up(self, now_s: float) -> None:
        """Producers waited for rounds that carried too little."""
        self._held_up.begin(now_s)

    def holds_nobody_up(self) -> None:
        """Producers go on between rounds: the next pause is a short one."""
        self._held_up.reset()

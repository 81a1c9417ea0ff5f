"""The controller: who leads, who is in sync, and who is taken for dead. Brokers learn of it some time after."""

from collections.abc import Callable, Iterable

from tests.simulation.replicas.replica import NO_LEADER, Leadership
from tests.simulation.virtual_time import VirtualTimeLoop

SESSION_S = 3.0
"""A broker that is not heard of for so long is fenced."""


class ControllerModel:
    """What it decides takes effect at once; `on_change` is told of each change."""

    def __init__(self, loop: VirtualTimeLoop, brokers: Iterable[int], partitions: int) -> None:
        self._loop = loop
        self.living = set(brokers)
        self.incarnations = dict.fromkeys(self.living, 0)
        """How often each broker has registered."""
        self._silent_since: dict[int, object] = {}
        in_sync = frozenset(self.living)
        self.partitions = [Leadership(min(self.living), 0, in_sync, 0) for _ in range(partitions)]
        self.on_change: Callable[[int, Leadership], None] = lambda _partition, _leadership: None
        self.on_unclean: Callable[[int, int], None] = lambda _partition, _leader: None
        """Told before, of the partition and its new leader."""

    def alter(self, partition: int, sender: int, asked: Leadership, isr: frozenset[int]) -> bool:
        """A leader wants another ISR; `asked` is what it knows. False: it knows too little."""
        known = self.partitions[partition]
        if known.version != asked.version or known.leader != sender or not isr - {sender} <= self.living:
            return False
        self._set(partition, known.leader, known.epoch, isr)
        return True

    def silent(self, broker: int) -> None:
        """It is fenced, unless it is heard again in time."""
        silence = self._silent_since[broker] = object()

        def fence() -> None:
            if self._silent_since.get(broker) is silence and broker in self.living:
                self.fence(broker)

        self._loop.call_later(SESSION_S, fence)

    def registered(self, broker: int) -> None:
        self.incarnations[broker] += 1
        self.heard(broker)

    def heard(self, broker: int) -> None:
        """Its heartbeats come, perhaps again."""
        self._silent_since.pop(broker, None)
        if broker in self.living:
            return
        self.living.add(broker)
        for partition, known in enumerate(self.partitions):
            if known.leader == NO_LEADER and broker in known.isr:
                self._set(partition, broker, known.epoch + 1, known.isr)

    def fence(self, broker: int) -> None:
        """It is taken for dead: others lead, where there are such that are in sync."""
        self.living.discard(broker)
        for partition, known in enumerate(self.partitions):
            left = known.isr - {broker} or known.isr
            if known.leader == broker:
                able = sorted(left & self.living)
                self._set(partition, able[0] if able else NO_LEADER, known.epoch + 1, left)
            elif left != known.isr:
                self._set(partition, known.leader, known.epoch, left)

    def move(self, partition: int, number: int) -> None:
        """Another one leads that is in sync, as by a preferred election."""
        known = self.partitions[partition]
        able = sorted(known.isr & self.living - {known.leader})
        if able:
            self._set(partition, able[number % len(able)], known.epoch + 1, known.isr)

    def elect_unclean(self, partition: int, number: int) -> None:
        """Another one that lives leads, in sync or not."""
        known = self.partitions[partition]
        able = sorted(self.living - {known.leader})
        if able:
            leader = able[number % len(able)]
            self.on_unclean(partition, leader)
            self._set(partition, leader, known.epoch + 1, frozenset((leader,)))

    def _set(self, partition: int, leader: int, epoch: int, isr: frozenset[int]) -> None:
        known = self.partitions[partition]
        self.partitions[partition] = Leadership(leader, epoch, isr, known.version + 1)
        self.on_change(partition, self.partitions[partition])

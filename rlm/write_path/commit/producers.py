"""Whether links cost producers their rate, and for how long links rest if they do, sans-IO.

A broker takes one Produce request of a connection at a time. It answers a producer with acks=all when the followers
have the records, and by link that takes an upload and a read: a round. As long as rounds carry what is produced, each
answer comes later and nothing is lost. Beyond that, producers lose throughput and their queues grow without an end.

Logs do not tell acks, and rates of appends are too noisy to tell who waits. The connections of the broker's clients
tell both, as the host's kernel shows them (`ClientConnection`). Links are checked 0.1 s after they began, and then at
twice the distance, up to every 5 s. A producer stands still if the broker reads nothing from it during an upload.

- *Requests wait unread behind the one that stands still.* If they are more than a few rounds' worth, the queue grows,
  and links end. If not, bytes go inline for a look. If much more comes then than came by links, producers had more to
  send than rounds carry, and links end. If the broker reads all, or no more comes than usual, they go on.
- *Nothing is unread, but the request came right behind the last answer*, as with producers that send one after the
  other: such a producer's rate is one request for each round. If much of the load comes so, bytes go inline for a look,
  and links end if it is faster then.
- *Objects do not pay*: the rounds are too small, and links end. If a load only falls below what pays, and nobody waits,
  links end without a hold-off.

Links that ended rest for a hold-off, doubled each time; a minute in which they hold nobody up resets it.
"""

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from plugin.inline_reason import InlineReason
from rlm.write_path.commit.doubling_pause import DoublingPause

log = structlog.get_logger(__name__)

QUIET_S: Final = 0.004
"""Seconds: so long without an append is a silence. It must be longer than the gaps within a round, which a busy machine
draws out; of a warm round of 25 ms, 11 pass until all six producers have appended anew. By judgement."""
HOLD_OFF_MIN_S: Final = 1.0
HOLD_OFF_MAX_S: Final = 600.0
"""Seconds. A try takes some tenths of a second, so in five minutes of saturation nine tries take 2 % of the time."""
GOOD_S: Final = 60.0
"""Seconds of links that hold nobody up, after which the next hold-off is a short one."""
CHECK_MIN_S: Final = 0.1
CHECK_MAX_S: Final = 5.0
"""Seconds from one check to the next, doubled each time. By judgement: a load that has grown waits so long at most."""
LOOK_S: Final = 0.4
"""The most seconds that a look takes: a busy broker may always have something left to read."""
_BEHIND: Final = 2.0
_LOST: Final = 0.2
"""Links have held a producer up if so many times what waited came behind it at once, besides what a receive buffer (100
KB by default) leaves with the client, and half that share of what came by links; or if requests wait to the look's end,
and by that share more came than by links. By judgement: on two full cores (2026-11-26) a producer whom links held up
had 0.3 to 0.4 more to send."""
_SAMPLE_S: Final = 0.005
"""Seconds from one sample of a look to the next: a dump of the kernel's table takes about 0.5 ms."""
_STANDS_S: Final = 0.02
"""Seconds without an answer: a broker that is only busy answers sooner. By judgement."""
_WAITING: Final = 4
"""Requests that wait unread at most, of Java's producers, which have five in flight."""
_QUEUED: Final = 5 * _WAITING
"""So many times what is read of a connection in an upload's time is a queue that grows. An answer takes up to five
uploads' time where several are under way (`perf.cost` at 10 MB/s)."""
_BATCH_BYTES: Final = 16_384
"""Kafka's default `batch.size`. A connection that sent less since the check began is no producer to care for, and less
that waits unread is no queue: a consumer's few hundred bytes wait behind its Fetch for new records (2026-11-26)."""
_REQUEST_BYTES: Final = 64
"""A broker that read less has not read a Produce request, but the length of one: it is busy."""
CHECKED_UPLOADS: Final = 3
"""So many uploads in a row a connection must stand still, so that it is no chance."""
_BEHIND_S: Final = 0.003
"""Seconds between an answer and the next request, up to which a producer has only waited for the answer. By
judgement; the kernel counts in milliseconds."""
_IN_STEP_SHARE: Final = 0.2
"""Share of the received bytes that must come so. By judgement: consumers' and coordinators' requests are small."""
_STEP_LOOK_S: Final = 0.2
"""Seconds of a look at them: some rounds inline."""
_STEP_FASTER: Final = 1.5
"""Links have held them up if so many times as much comes in a look. By judgement: a producer that waits for a busy
broker is in step, too, and no faster without links."""
_IDLE_S: Final = 0.3
"""Seconds since the last append and the last upload by which a load has ended: longer than uploads wait for more."""
_LOAN_OBJECTS: Final = 4.0
"""So many objects' worth may be lost to objects that are too small before links end: rounds of default producers carry
one to two break-evens, so single ones do not pay, and all together do."""
WEIGHT: Final = 1 / 4
"""Share of the newest upload in what is known of all, so that a load that changes is recognised within a few."""
_MOST: Final = 0.5
"""Share of uploads. The plain half."""
_UNMOVED: Final = 0.8
"""Share of what is appended usually: from it on during uploads, nobody is taken to wait. Those who wait for an upload
append nothing meanwhile, so a fifth of the load's producers may, or all of them for a fifth of their time."""
_MEANWHILE_WEIGHT: Final = 1 / 16
"""Share of the newest upload in that share: an upload takes a few batches' time, so it takes many to tell."""


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """One connection to the broker, as its host's kernel shows it."""

    received_bytes: int
    """All that ever came."""
    unread_bytes: int
    """What of it the broker has not read: it reads a request after it has answered the one before."""
    since_received_s: float
    """Seconds since something came last."""
    since_sent_s: float
    """Seconds since the broker sent something last."""

    @property
    def read_bytes(self) -> int:
        return self.received_bytes - self.unread_bytes

    @property
    def is_in_step(self) -> bool:
        """Whether its last request waits for an answer, and came right behind the answer before."""
        return not self.unread_bytes and 0 <= self.since_sent_s - self.since_received_s <= _BEHIND_S


Connections = Mapping[Hashable, ClientConnection]
"""The connections of the broker's clients, each by its two addresses."""


_NEW: Final = ClientConnection(0, 0, 0.0, 0.0)


class _Check:
    """Links since they began or were checked last, and the check that ends this time."""

    def __init__(self, base: Connections, begun_s: float) -> None:
        """`base`: the connections at its begin."""
        self._base, self.begun_s = base, begun_s
        self._uploads = self._uploaded_bytes = 0
        self._at_upload: Connections = {}
        self._at_upload_s = math.inf
        self._most_unread: dict[Hashable, int] = {}
        self._standing: set[Hashable] | None = None
        """Connections of which nothing was read during each upload, though requests waited."""
        self._in_step: set[Hashable] | None = None
        self._judged = 0
        """Uploads that were judged."""
        self._at_look: Connections = {}
        self._look_s = self.sampled_s = math.inf
        """When the look began, and when it was sampled last."""

    @property
    def is_looking(self) -> bool:
        """Whether bytes go inline for a look."""
        return self._look_s < math.inf

    @property
    def has_uploads(self) -> bool:
        """Whether an upload has begun since its begin."""
        return self._uploads > 0

    @property
    def is_whole(self) -> bool:
        """Whether enough uploads were judged."""
        return self._judged >= CHECKED_UPLOADS

    def bytes_per_s(self, now_s: float) -> float:
        """Return the rate of what was uploaded."""
        return self._uploaded_bytes / max(now_s - self.begun_s, 0.001)

    def before_first_upload(self, now: Connections, gathered_bytes: int) -> str:
        """Judge what the first object would hold; why links hold producers up, or empty."""
        sent_ahead = [one for one in now.values() if one.since_received_s < _STANDS_S <= one.since_sent_s]
        unread = sum(one.unread_bytes for one in sent_ahead)
        if unread > max(1.5 * _WAITING * gathered_bytes, _BATCH_BYTES):
            return f"{unread:,} bytes wait unread behind {gathered_bytes:,} for the first object, and more come"
        return ""

    def count(self, size_bytes: int) -> None:
        """Count an upload that begins."""
        self._uploads, self._uploaded_bytes = self._uploads + 1, self._uploaded_bytes + size_bytes

    def uploading(self, sample: Callable[[], Connections], now_s: float) -> None:
        """Sample when an upload begins, unless one that began after the last sample is still under way."""
        if self._at_upload_s == math.inf:
            self._at_upload, self._at_upload_s = sample(), now_s

    def began_before(self, upload_begun_s: float) -> bool:
        """Whether the connections were sampled when that upload began, or before it."""
        return self._at_upload_s <= upload_begun_s

    def uploaded(self, now: Connections) -> str:
        """Judge after an upload; why links hold producers up, or empty."""
        before, self._at_upload_s = self._at_upload, math.inf
        still = {key for key, one in now.items() if key in before and one.read_bytes == before[key].read_bytes}
        standing = {
            key
            for key in still
            if now[key].unread_bytes and before[key].unread_bytes and self._came_since(key, now) >= _BATCH_BYTES
        }
        for key in standing:
            unread, read = now[key].unread_bytes, self._read_since(key, now) / self._uploads
            if unread > max(_QUEUED * read, _BATCH_BYTES) and read >= _REQUEST_BYTES:
                return f"{unread:,} bytes of a producer wait unread, and {read:,.0f} are read in an upload's time"
        for key in standing:
            self._most_unread[key] = max(self._most_unread.get(key, 0), now[key].unread_bytes)
        in_step = {
            key for key in still if now[key].is_in_step and now[key].received_bytes == before[key].received_bytes
        }
        self._standing = standing if self._standing is None else self._standing & standing
        self._in_step = in_step if self._in_step is None else self._in_step & in_step
        self._judged += 1
        return ""

    def stopped_paying(self, now: Connections) -> str:
        """Judge when links do not pay any more; why links hold producers up, or empty."""
        share = self._share_of({key for key, one in now.items() if one.is_in_step or one.unread_bytes}, now)
        return f"links made the load too small to pay for them: {share:.0%} of it waits" if share >= _MOST else ""

    def _share_of(self, keys: Collection[Hashable], now: Connections) -> float:
        """Return the share of these connections in what came since the begin."""
        came = {key: self._came_since(key, now) for key in now}
        return sum(came[key] for key in keys if key in came) / max(sum(came.values()), 1)

    def _came_since(self, key: Hashable, now: Connections) -> int:
        return now[key].received_bytes - self._base.get(key, _NEW).received_bytes

    def _read_since(self, key: Hashable, now: Connections) -> int:
        return now[key].read_bytes - self._base.get(key, _NEW).read_bytes

    def look(self, now: Connections, now_s: float) -> bool:
        """Begin to watch how the broker reads what stood still. Returns whether anything did."""
        if self._in_step and self._share_of(self._in_step, now) < _IN_STEP_SHARE:
            self._in_step = set()
        if self._standing or self._in_step:
            self._at_look, self._look_s, self.sampled_s = now, now_s, now_s
        return self.is_looking

    def judge(self, now: Connections, now_s: float) -> str | None:
        """Judge during the look; why links hold producers up, empty: they do not; None: not known yet."""
        self.sampled_s, look_s = now_s, now_s - self._look_s
        self._standing = {key for key in self._standing or () if key in now and now[key].unread_bytes}
        for key in self._standing:
            begun, linked_bytes = self._at_look[key], self._read_since(key, self._at_look)
            usual_bytes = linked_bytes / self._linked_s * look_s
            more_bytes = now[key].read_bytes - begun.received_bytes - usual_bytes
            is_late = look_s >= LOOK_S and more_bytes > _LOST * usual_bytes
            waiting_bytes = _BEHIND * self._most_unread[key] + _WAITING * linked_bytes / self._uploads
            if is_late or more_bytes > waiting_bytes + _LOST / 2 * linked_bytes:
                return f"a producer had {more_bytes:,.0f} bytes to send behind {begun.unread_bytes:,} that waited"
        if self._in_step and look_s >= _STEP_LOOK_S:
            there = [key for key in self._in_step if key in now]
            linked_bytes_per_s = sum(self._came_since(key, self._at_look) for key in there) / self._linked_s
            bytes_per_s = sum(now[key].received_bytes - self._at_look[key].received_bytes for key in there) / look_s
            if bytes_per_s > _STEP_FASTER * linked_bytes_per_s:
                return (
                    "producers that send a request as soon as the one before is answered sent "
                    f"{bytes_per_s / 1e6:.2f} MB/s in a look and {linked_bytes_per_s / 1e6:.2f} by links"
                )
            self._in_step = set()
        return None if (self._standing or self._in_step) and look_s < LOOK_S else ""

    @property
    def _linked_s(self) -> float:
        return max(self._look_s - self.begun_s, 0.001)


class Producers:
    """Judges whether producers of the partitions led here lose throughput by links. Times are monotonic seconds."""

    def __init__(self, connections: Callable[[], Connections | None] | None = None) -> None:
        """`connections` samples those of the broker's clients; None: producers never wait for an upload.

        It returns None where they cannot be seen. Then nothing that may hold producers up is linked by cost.
        """
        self._sample = connections
        self._check: _Check | None = None
        """None: links by cost are not in use."""
        self.usual_bytes_per_s = 0.0
        """The rate before links began or up to the last check: while producers wait for an upload, less comes."""
        self._checks = DoublingPause(CHECK_MIN_S, CHECK_MAX_S)
        self._append_s = self._stored_s = -math.inf
        self._share_disturbed = 0.0
        self._meanwhile_bytes = self._usual_bytes = 0.0
        """Bytes appended during the last uploads, and usually in as much time."""
        self._uploads = 0
        self._good_since_s = math.inf
        self._paid_objects = 0.0
        """How many objects' worth was saved since links began; below 0: lost."""
        self._hold_off = DoublingPause(HOLD_OFF_MIN_S, HOLD_OFF_MAX_S)
        self._is_blind = False
        self.held_up_s: float | None = None
        """When links last ended because they held producers up."""
        self.why = ""
        """Why, in words."""

    def __str__(self) -> str:
        meanwhile = self._meanwhile_bytes / max(self._usual_bytes, 1.0)
        return (
            f"links {'off' if self._check is None else f'on, judged since {self._check.begun_s:.3f}'}, "
            f"producers {'wait' if self.wait else 'go on'}, {meanwhile:.2f} of the usual come during uploads, "
            f"paid {self._paid_objects:+.1f} objects, next check at {self._checks.until_s:.3f}, "
            f"hold-off until {self._hold_off.until_s:.3f}: {self.why or 'none'}"
        )

    @property
    def wait(self) -> bool:
        """Whether most of the last uploads met a silence that lasted until they were stored. At first: yes."""
        return self._share_disturbed < _MOST

    @property
    def nobody_waits(self) -> bool:
        """Whether as much was appended during the last uploads as at any other time."""
        return not self.wait and self._meanwhile_bytes >= _UNMOVED * self._usual_bytes

    @property
    def rest_until_s(self) -> float:
        """Until when nothing is linked by cost, looks aside."""
        return self._hold_off.until_s

    def may_link(self, now_s: float) -> bool:
        """Whether links that would pay may be used now. A look goes on by this question."""
        if self._check is not None and self._check.is_looking and now_s - self._check.sampled_s >= _SAMPLE_S:
            self._go_on_looking(self._check, now_s)
        return not self._is_looking and now_s >= self._hold_off.until_s

    @property
    def _is_looking(self) -> bool:
        check = self._check
        return check is not None and check.is_looking

    @property
    def are_linking(self) -> bool:
        """Whether links by cost are in use, looks included."""
        return self._check is not None

    def _connections(self) -> Connections:
        """Sample the connections; none if they cannot be seen."""
        return (self._sample() if self._sample is not None else None) or {}

    def may_rest(self, now_s: float) -> InlineReason | None:
        """Return why links that would pay rest now, or None if they do not. May be called on any thread."""
        if now_s < self._hold_off.until_s:
            return InlineReason.UNSEEN if self._is_blind else InlineReason.HELD_UP
        return InlineReason.LOOK if self._is_looking else None

    # What happened.

    def linking(self, now_s: float, bytes_per_s: float = 0.0) -> None:
        """Note that links by cost begin, and the rate so far."""
        connections: Connections | None = {} if self._sample is None else self._sample()
        self._is_blind = connections is None
        if connections is None:
            self.held_up(now_s, "the connections of the broker's clients cannot be seen from here")
            return
        self._check = _Check(connections, now_s)
        self._paid_objects, self.usual_bytes_per_s = 0.0, bytes_per_s
        self._good_since_s = min(self._good_since_s, now_s)
        self._checks.begin(now_s)

    def going_inline(self, now_s: float, *, do_pay: bool) -> None:
        """Note that links by cost are not in use. If they stopped paying because producers wait, they rest."""
        check = self._check
        if check is None or check.is_looking:
            return
        is_idle = now_s - max(self._append_s, self._stored_s) >= _IDLE_S
        did_shrink = check.has_uploads and self.wait and self._paid_objects < 1 and not (do_pay or is_idle)
        if did_shrink and (why := check.stopped_paying(self._connections())):
            self.held_up(now_s, why)
            return
        self._end_links()

    def _end_links(self) -> None:
        self._check, self.usual_bytes_per_s = None, 0.0
        self._checks.reset()

    def append_seen(self, now_s: float) -> None:
        """Note an append."""
        self._append_s = now_s

    def are_held_up(self, gathered_bytes: int, paying_bytes: float, now_s: float) -> bool:
        """Tell before an upload by cost whether so little came that links end here."""
        if self._check is None:
            return False
        is_first = self._sample is not None and not self._check.has_uploads
        if is_first and (why := self._check.before_first_upload(self._connections(), gathered_bytes)):
            self.held_up(now_s, why)
            return True
        if self._paid_objects + gathered_bytes / max(paying_bytes, 1.0) < 1 - _LOAN_OBJECTS:
            self.held_up(now_s, "objects became too small to pay")
            return True
        return False

    def uploading(self, size_bytes: int, paying_bytes: float, now_s: float) -> None:
        """Note that an upload begins, and sample the connections if a check is due."""
        check = self._check
        if check is None or check.is_looking:
            return
        check.count(size_bytes)
        self._paid_objects = min(self._paid_objects + size_bytes / max(paying_bytes, 1.0) - 1, _LOAN_OBJECTS)
        if self._sample and self._checks.is_over(now_s):
            check.uploading(self._connections, now_s)

    def stored(self, upload_s: float, appended_bytes: int, usual_bytes: float | None, now_s: float) -> None:
        """Note a stored upload: what was appended since it began, and what usually is in as much time, if known."""
        self._stored_s = now_s
        self._share_disturbed += WEIGHT * ((appended_bytes > 0) - self._share_disturbed)
        if usual_bytes is not None:
            self._uploads += 1
            weight = max(1 / self._uploads, _MEANWHILE_WEIGHT)
            self._meanwhile_bytes += weight * (appended_bytes - self._meanwhile_bytes)
            self._usual_bytes += weight * (usual_bytes - self._usual_bytes)
        check = self._check
        if check is not None and not check.is_looking and check.began_before(now_s - upload_s):
            self._judge_upload(check, now_s)

    def _judge_upload(self, check: _Check, now_s: float) -> None:
        connections = self._connections()
        if why := check.uploaded(connections):
            self.held_up(now_s, why)
        elif check.is_whole and not check.look(connections, now_s):
            self._is_well(check, connections, now_s)

    def _go_on_looking(self, check: _Check, now_s: float) -> None:
        connections = self._connections()
        why = check.judge(connections, now_s)
        if why:
            self.held_up(now_s, why)
        elif why is not None:
            self._is_well(check, connections, now_s)

    def _is_well(self, check: _Check, connections: Connections, now_s: float) -> None:
        """Go on with links, because a check found nobody held up."""
        self.usual_bytes_per_s = check.bytes_per_s(now_s)
        self._check = _Check(connections, now_s)
        self._checks.begin(now_s)
        if now_s - self._good_since_s >= GOOD_S:
            self._hold_off.reset()

    def held_up(self, now_s: float, why: str) -> None:
        """End links for a hold-off."""
        self._hold_off.begin(now_s)
        self._good_since_s = math.inf
        self._end_links()
        self.held_up_s, self.why = now_s, why
        log.info("links_rest", reason=why, seconds=round(self._hold_off.until_s - now_s, 1))

    def did_well(self) -> None:
        """Note that links paid: the next hold-off is a short one."""
        self._hold_off.reset()

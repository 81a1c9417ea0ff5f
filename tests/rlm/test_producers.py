"""Links end where they cost producers their rate, and nowhere else; in virtual time."""

import tracemalloc
from dataclasses import dataclass

import pytest

from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.inline_reason import InlineReason
from rlm.write_path.commit.link_policy import CostLimits, LinkDecider, LinkMode
from rlm.write_path.commit.producers import CHECK_MAX_S, ClientConnection, Connections, Producers
from tests.rlm.plain_log import partition

UPLOAD_S, PAYING, ROUND_S = 0.010, 8_000.0, 0.03


@dataclass
class Client:
    """A client: requests of one size, which it sends as long as fewer than allowed are unanswered."""

    bytes_per_s: float
    request_bytes: int = 16_000
    in_flight: float = 5
    burst: int = 1
    """So many requests are made at once."""
    waits: bool = True
    """Whether each of its requests takes a round while bytes go by link."""
    due_bytes = 0.0
    sent = read = answered = 0
    """Requests."""
    sent_s = answered_s = 0.0

    def goes_on(self, now_s: float, seconds: float) -> None:
        """Produce for so long, and send what may be sent."""
        self.due_bytes += self.bytes_per_s * seconds
        due = self.due_bytes // (self.request_bytes * self.burst) * self.burst
        while self.sent < due and self.sent - self.answered < self.in_flight:
            self.sent, self.sent_s = self.sent + 1, now_s

    def is_answered(self, now_s: float) -> int:
        """Have the request that was read answered, and the next one read; how many bytes that appends."""
        if self.answered < self.read:  # its followers have it by now
            self.answered, self.answered_s = self.read, now_s
            self.goes_on(now_s, 0)
        if self.read == self.sent:
            return 0
        self.read += 1
        return self.request_bytes

    def shown(self, now_s: float) -> ClientConnection:
        received, unread = self.sent * self.request_bytes, (self.sent - self.read) * self.request_bytes
        return ClientConnection(received, unread, now_s - self.sent_s, now_s - self.answered_s)


class Rounds:
    """Links in use: what producers send is appended, uploaded and answered round by round; inline it is at once."""

    def __init__(self, *clients: Client) -> None:
        self.clients, self.now_s, self.looked_s, self.appended = clients, 100.0, 0.0, 0
        self.producers = Producers(self.connections)

    def connections(self) -> Connections | None:
        return {number: one.shown(self.now_s) for number, one in enumerate(self.clients)}

    def _pass(self, seconds: float, *, is_inline: bool = False) -> int:
        """Let so much time pass; how much was appended."""
        appended = 0
        for _ in range(round(seconds / 0.001)):
            self.now_s += 0.001
            for one in self.clients:
                one.goes_on(self.now_s, 0.001)
                if is_inline or not one.waits or one.answered == one.read:
                    appended += one.is_answered(self.now_s)
        return appended

    def round(self) -> None:
        appended = sum(one.is_answered(self.now_s) for one in self.clients if one.waits)  # of the round before
        appended += self._pass(ROUND_S - UPLOAD_S)
        self.producers.append_seen(self.now_s)
        if not appended or self.producers.are_held_up(appended, PAYING, self.now_s):
            return
        self.producers.uploading(appended, PAYING, self.now_s)
        meanwhile = self._pass(UPLOAD_S)
        self.producers.stored(UPLOAD_S, meanwhile, appended * UPLOAD_S / ROUND_S, self.now_s)

    def run(self, seconds: float) -> str:
        """Use links where they may be used; why they held producers up last."""
        if not self.producers.why and not self.appended:
            self.appended = self._pass(0.1, is_inline=True)
        until_s = self.now_s + seconds
        while self.now_s < until_s and not self.producers.why:
            if self.producers.may_link(self.now_s):
                if not self.producers.are_linking:
                    self.producers.linking(self.now_s)
                self.round()
            else:
                self.looked_s += 0.005
                self._pass(0.005, is_inline=True)
        return self.producers.why


def test_producers_that_send_no_more_than_rounds_carry_keep_links_and_are_looked_at_now_and_then() -> None:
    rounds = Rounds(Client(0.5e6, burst=4), Client(0.48e6, burst=4), Client(0.2e6))
    assert rounds.run(60.0) == ""
    assert 0 < rounds.looked_s < 0.6


def test_producers_with_more_to_send_than_rounds_carry_end_links_within_a_second() -> None:
    rounds = Rounds(Client(0.4e6), Client(1.2e6))
    assert "to send behind" in rounds.run(1.5)


def test_a_load_that_grows_to_more_than_rounds_carry_ends_links_after_the_next_check() -> None:
    rounds = Rounds(Client(0.4e6))
    assert rounds.run(30.0) == ""
    rounds.clients[0].bytes_per_s = 1.5e6
    assert rounds.run(2 * CHECK_MAX_S)


def test_requests_sent_ahead_without_a_bound_end_links_soon() -> None:
    rounds = Rounds(Client(0.9e6, 1000, in_flight=1e6))
    begun_s = rounds.now_s
    assert "wait unread" in rounds.run(1.0)
    assert rounds.now_s - begun_s < 0.3


def test_requests_that_fill_a_busy_brokers_buffers_are_no_queue() -> None:
    assert Rounds(Client(0.4e6), Client(1e9, 256_000, waits=False)).run(20.0) == ""


def test_a_queue_that_grows_later_is_seen_by_what_is_read_of_it() -> None:
    rounds = Rounds(Client(0.4e6), Client(0.01e6, 1000, in_flight=1e6))
    assert rounds.run(3.0) == ""
    rounds.clients[1].bytes_per_s = 1e6
    assert "are read in an upload's time" in rounds.run(2 * CHECK_MAX_S)


def test_producers_that_send_one_request_after_the_other_end_links_if_much_comes_so() -> None:
    one_by_one = Client(1e9, in_flight=1)
    assert "as soon as the one before is answered" in Rounds(Client(0.4e6), one_by_one).run(2.0)
    seldom = Client(0.01e6, 1000, in_flight=1)
    assert Rounds(Client(0.4e6), seldom).run(10.0) == ""
    by_a_busy_broker = Client(0.3e6, in_flight=1)
    assert Rounds(Client(0.4e6), by_a_busy_broker).run(10.0) == ""


def test_producers_that_do_not_wait_for_rounds_keep_links_without_a_look_as_fast_as_they_go() -> None:
    rounds = Rounds(Client(1e9, waits=False), Client(5e6, waits=False))
    assert rounds.run(60.0) == ""
    assert not rounds.looked_s
    assert "producers go on" in str(rounds.producers)


def test_rounds_that_never_pay_end_links() -> None:
    assert "too small to pay" in Rounds(Client(0.1e6, 1000)).run(5.0)


def test_where_connections_cannot_be_seen_nothing_is_linked_and_the_reason_is_told() -> None:
    producers = Producers(lambda: None)
    assert producers.may_link(100.0)
    producers.linking(100.0)
    assert not producers.may_link(100.5)
    assert producers.may_rest(100.5) is InlineReason.UNSEEN
    assert "cannot be seen" in producers.why


def test_each_hold_off_is_twice_as_long_until_links_were_good_for_a_minute() -> None:
    rounds, pauses_s = Rounds(Client(0.4e6)), []
    one, now_s = rounds.producers, 0.0
    for _ in range(12):
        one.held_up(now_s, "a test")
        begun_s = now_s
        while not one.may_link(now_s):
            now_s += 0.5
        pauses_s.append(round(now_s - begun_s))
    assert pauses_s == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
    rounds.now_s, one.why = now_s, ""
    assert rounds.run(70.0) == ""
    one.held_up(rounds.now_s, "a test")
    assert one.may_link(rounds.now_s + 1.0)


@pytest.mark.parametrize(
    ("client", "is_idle", "is_held"),
    [
        pytest.param(Client(1e9, 8_000, in_flight=1), False, True, id="sent one by one"),
        pytest.param(Client(1e9, 8_000, in_flight=1), True, False, id="load has ended"),
        pytest.param(Client(0.25e6, 8_000, waits=False), False, False, id="small for a moment"),
    ],
)
def test_links_that_do_not_pay_any_more_rest_if_producers_wait(client: Client, is_idle: bool, is_held: bool) -> None:
    rounds = Rounds(client)
    rounds.run(0.1)
    if is_idle:
        rounds.now_s += 0.5
    else:
        rounds.producers.append_seen(rounds.now_s)
    rounds.producers.going_inline(rounds.now_s, do_pay=False)
    assert (rounds.producers.held_up_s is not None) is is_held


def test_a_consumers_requests_behind_its_fetch_are_no_queue() -> None:
    rounds = Rounds(Client(0.4e6), Client(0.005e6, 100, in_flight=1e6))
    assert rounds.run(5.0) == ""
    assert rounds.looked_s <= 0.05


def decider(**more: float) -> LinkDecider:
    return LinkDecider(CostLimits(34_000, 0.025, **more))


def test_a_hold_off_is_for_links_by_cost_of_producers_that_may_wait() -> None:
    one = decider()

    def mode(policy: LinkPolicy, *, is_free: bool = False) -> LinkMode:
        return one.choose_mode(policy, 1000, 50_000, 100.1, is_free=is_free)

    assert mode(LinkPolicy.COST) is LinkMode.LINK
    one.producers.held_up(100.0, "a test")
    assert mode(LinkPolicy.COST) is mode(LinkPolicy.LATENCY) is LinkMode.INLINE
    assert mode(LinkPolicy.ALWAYS) is mode(LinkPolicy.COST, is_free=True) is LinkMode.LINK


def test_a_partition_is_free_while_almost_all_of_it_is_known_to_have_come_so() -> None:
    one, now_s = decider(), 100.0
    assert not one.is_free(partition(0), now_s)
    for _ in range(300):
        now_s += 0.01
        one.came_freely(partition(0), 1000, now_s)
        one.appended(1000, now_s - 0.01, now_s, partition(0))
    assert one.is_free(partition(0), now_s)
    assert not one.is_free(partition(1), now_s)
    for _ in range(100):
        now_s += 0.01
        one.came_freely(partition(0), 900, now_s)
        one.appended(1000, now_s - 0.01, now_s, partition(0))
    assert not one.is_free(partition(0), now_s), "a tenth came otherwise"
    one.set_led([])
    assert not one.is_free(partition(0), now_s)


def test_a_partition_is_free_a_second_after_the_last_other_bytes_however_seldom_its_log_is_read() -> None:
    one, now_s = decider(), 100.0
    one.came_freely(partition(0), 1, now_s)
    assert one.is_free(partition(0), now_s), "nothing else came"
    one.appended(100_000, now_s - 1, now_s, partition(0))
    assert not one.is_free(partition(0), now_s)
    for _ in range(3):
        for _ in range(10):
            one.came_freely(partition(0), 10_000, now_s)
            now_s += 0.04
        one.appended(100_000, now_s - 0.4, now_s, partition(0))
    assert one.is_free(partition(0), now_s)


def test_requests_of_one_producer_count_however_many_reads_their_records_take() -> None:
    one, now_s = decider(), 100.0
    for _ in range(20):
        one.came_freely(partition(0), 50_000, now_s)  # five requests, sent ahead
        for _ in range(5):
            now_s += 0.1
            one.appended(10_000, now_s - 0.1, now_s, partition(0))
    assert one.is_free(partition(0), now_s)


def test_what_a_broker_refuses_all_the_time_takes_no_more_and_more_memory() -> None:
    one, taken = decider(), list[int]()
    tracemalloc.start()
    for _ in range(2):
        for step in range(5_000):
            one.came_freely(partition(0), 1_000, 100.0 + len(taken) * 500 + step / 10)
        taken.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert taken[1] < taken[0] + 100_000


def test_what_a_broker_refused_covers_no_other_bytes_later() -> None:
    one, now_s = decider(), 100.0
    one.came_freely(partition(0), 1_000_000, now_s)  # refused
    for _ in range(60):
        now_s += 0.1
        one.appended(10_000, now_s - 0.1, now_s, partition(0))
    assert not one.is_free(partition(0), now_s)

"""The page that a person opens in a browser."""

import re
from html.parser import HTMLParser

import pytest

from agent.http.status import Peer, Status
from agent.http.status_page import MOST_TOPICS, dollars, duration, size, status_page
from agent.metrics.savings import Dollars
from agent.metrics.topic_metrics import TopicState
from agent.wiring.write_path import TopicWay
from plugin.inline_reason import InlineReason
from plugin.prices import NEVER_PAYS
from plugin.remote_wal_storage_manager import RequestCounts
from replication.follower.peer_watch import Presence
from replication.wire.metrics import RecentTraffic
from rlm.write_path.core.led_partition import PartitionStatus
from rlm.write_path.explanation import Explanation

_VOID = {"meta", "br"}
THERE = Presence(1.25)
SILENT = Presence(7.0, "connection refused")


class Page(HTMLParser):
    """Its text, and whether each element that is opened is closed."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.markup = status_page(status, "1.2.3").decode()
        self.feed(self.markup)
        assert self.open == []

    @property
    def answer(self) -> str:
        (found,) = re.findall(r'<p class="answer">(.*?)</p>', self.markup)
        return re.sub(r"<[^>]*>", "", found)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)


def status(**changes: object) -> Status:
    well: dict[str, object] = {
        "broker_id": 1,
        "cluster_id": "abc",
        "zone": "az1",
        "uptime_s": 7300.0,
        "is_store_there": True,
        "break_even_bytes": 33_700,
        "dollars": Dollars(20.0, 0.5, 2.0),
        "topics": {"orders": TopicState(2, 0, 0, 987_000, 13_000)},
        "partitions": [PartitionStatus("orders", 0, 10, 10, 0, 0, 0)],
        "store_answered_s_ago": 0.5,
        "peers": [Peer(2, "az2", False, False, 10, 1000, THERE), Peer(3, None, False, False, 0, 0, THERE)],
    }
    return Status(**{**well, **changes})  # type: ignore[arg-type]


def test_of_each_topic_it_says_what_was_linked_of_late_and_why_not_the_rest() -> None:
    moved = RecentTraffic()
    moved.add("linked", 1_000_000, 90.0)
    moved.add("load", 3_000_000, 90.0)
    why = TopicWay.of(moved, Explanation(InlineReason.LOAD, "too little <here>", "an object: 1 KB"), 100.0)
    page = Page(status(why={"orders": why}))
    assert "25.0 %" in page.markup
    told = "too little &lt;here&gt;<small>an object: 1 KB (inline in the last hour: 3.0 MB load)</small>"
    assert told in page.markup


def test_of_the_answer_only_what_is_wrong_is_marked() -> None:
    assert 'class="wrong"' not in Page(status(degraded=["something"])).markup
    lost = Page(status(gaps=17)).markup
    assert lost.count('class="wrong"') == 1
    assert '<b class="wrong">17 offsets are lost to storage.</b>' in lost


def test_a_loss_is_not_shown_in_the_colour_of_what_is_well() -> None:
    markup = Page(status(dollars=Dollars(1.0, 0.9, 0.3))).markup
    assert '<b class="wrong">$0.20</b> more than inline.' in markup
    rules = dict(re.findall(r"(\.(?:good )?\.?answer b(?:\.wrong)?) { color: var\(--(\w+)\) }", markup))
    assert rules == {".good .answer b": "tone", ".answer b.wrong": "bad"}, "of two as specific the later one counts"


def test_no_line_ends_between_a_figure_and_its_unit() -> None:
    assert "987\u00a0kB linked, 13.0\u00a0kB inline" in Page(status()).text


def test_the_answer_comes_first() -> None:
    page = Page(status())
    assert page.answer == "Replicating by links: 98.7 %. Nothing waits to be stored. $17.50 saved."
    assert "all well" in page.text
    for told in (
        "zone az1",
        "up 2 h 1 min",
        "release 1.2.3",
        "beside stock Kafka, which sends every byte as it is: $20.00 of cross-zone traffic there; $0.50 by links and "
        "packing",
        "broker 2",
        "answered 1.2 s ago",
        "answered 500\u00a0ms ago",
    ):
        assert told in page.text


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"topics": {}}, "No topic led here replicates"),
        ({"topics": {"t": TopicState(1, 0, 0, 9, 0)}}, "Replicating by links: 100.0 %. Everything stored."),
        ({"topics": {"t": TopicState(1)}}, "No follower has been sent records yet. Everything stored."),
        (
            {"topics": {"t": TopicState(1, 7, 90_000, 0, 9)}},
            "pay from 33.7 kB on. Stored but for the last 90 s.",
        ),
        ({"topics": {"t": TopicState(1, 0, 0, 0, 9)}, "break_even_bytes": NEVER_PAYS}, "links do not pay"),
        ({"reasons": ["no"]}, "By links so far: 98.7 %"),
        ({"gaps": 1234}, "1,234 offsets are lost to storage."),
        ({"dollars": Dollars(1.0, 0.9, 0.3)}, "$0.20 more than inline."),
    ],
)
def test_what_is_not_as_hoped_is_said_in_the_answer(changes: dict[str, object], answer: str) -> None:
    assert answer in Page(status(**changes)).answer


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "all well"),
        ({"dollars": Dollars(1.0, 1.0, 0.0)}, "works, and saves nothing"),
        ({"dollars": Dollars(0, 0, 0)}, "all well"),  # nothing moved yet
        ({"degraded": ["soon"]}, "to be looked at"),
        ({"topics": {"t": TopicState(1, 7, 61_000, 1, 0)}}, "to be looked at"),
        ({"degraded": ["soon"], "reasons": ["store"]}, "not well"),
        ({"gaps": 1}, "not well"),
        ({"peers": [Peer(2, None, False, False, 0, 0, SILENT)]}, "not well"),
        ({"peers": [Peer(2, None, False, True, 0, 0, THERE)]}, "not well"),
        ({"peers": [Peer(2, None, False, False, 0, 0, Presence(10.5))]}, "not well"),  # nobody measures any more
        ({"peers": [Peer(2, None, False, False, 0, 0)]}, "to be looked at"),
        ({"store_failed": (3.0, "timeout")}, "not well"),
        ({"broker_away": "refused", "reasons": ["store"]}, "does not answer its agent"),
    ],
)
def test_one_word_says_how_it_is_and_the_reasons_stand_below(changes: dict[str, object], word: str) -> None:
    page = Page(status(**changes))
    assert word in page.texts
    for reasons in (changes.get("degraded", []), changes.get("reasons", [])):
        assert isinstance(reasons, list)
        assert all(reason in page.texts for reason in reasons)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"peers": [Peer(2, None, False, False, 0, 0, SILENT)]}, "last answered 7.0 s ago): connection refused"),
        ({"peers": [Peer(2, None, False, False, 0, 0)]}, "was not asked yet"),
        ({"peers": [Peer(2, None, False, True, 0, 0, THERE)]}, "dead, bypassed; answered 1.2 s ago"),
        ({"store_failed": (3.0, "timeout")}, "timeout 3.0 s ago; answered 500 ms ago"),
        ({"is_store_there": False, "store_answered_s_ago": None}, "does not answer never answered yet"),
        ({"store_answered_s_ago": 7300.0}, "not asked lately answered 2 h 1 min ago"),
    ],
)
def test_each_state_is_shown_with_its_age_and_what_is_unknown_as_unknown(changes: dict[str, object], told: str) -> None:
    assert told in " ".join(Page(status(**changes)).text.split())


def test_peers_link_to_their_agents_own_pages_as_they_are_registered() -> None:
    hosts = ["kafka-2:19095", "https://kafka-3:19095", "javascript:x", 'http://x/"onclick', ""]
    peers = [Peer(at + 2, None, False, False, 0, 0, THERE, host, "0.9") for at, host in enumerate(hosts)]
    page = Page(status(peers=peers))
    links = ["http://kafka-2:19095/", "https://kafka-3:19095/", "http://javascript:x/", 'http://x/"onclick/']
    assert [value for key, value in page.attributes if key == "href"] == links
    assert page.text.count("0.9") == 5
    assert "broker 6" in page.text


def test_a_store_that_answers_no_has_not_failed() -> None:
    counts = RequestCounts(put=7, failures={"exists": 1, "not_found": 2, "throttled": 4})
    page = Page(status(requests=counts))
    assert "7 PUT, 0 GET, failed attempts: 4" in page.text
    assert "nothing waits" in page.text


def test_before_it_relays_it_says_so() -> None:
    page = Page(Status(1, reasons=["log directories are not formatted yet"]))
    assert page.answer == "Not relaying yet."
    assert "log directories are not formatted yet" in page.texts


def test_markup_in_names_stays_text_and_nothing_is_loaded_or_run() -> None:
    name = '<script src="//x">&\'"'
    page = Page(
        status(
            topics={name: TopicState(1, 0, 0, 1, 1)},
            partitions=[PartitionStatus(name, 0, 1, 1, 0, 0, 0)],
            peers=[Peer(2, name, False, False, 0, 0)],
            cluster_id=name,
            zone=name,
            reasons=[name],
            degraded=[name],
        )
    )
    assert page.text.count(name) == 7
    assert "<script" not in page.markup
    assert {key for key, _ in page.attributes} <= {"lang", "class", "charset", "name", "content", "http-equiv", "style"}
    assert "url(" not in page.markup
    assert "@import" not in page.markup


def test_only_the_largest_topics_are_shown_and_the_others_counted() -> None:
    topics = {f"topic-{number}-": TopicState(1, 0, 0, 1000 - number, 0) for number in range(MOST_TOPICS + 7)}
    page = Page(status(topics=topics))
    assert f"topic-{MOST_TOPICS - 1}-" in page.text
    assert f"topic-{MOST_TOPICS}-" not in page.text
    assert "and 7 more" in page.text


def test_figures_have_units_that_people_read() -> None:
    assert [size(count) for count in (0, 999, 1000, 33_700, 5 * 10**12, 10**16)] == [
        "0 B", "999 B", "1.0 kB", "33.7 kB", "5.0 TB", "10,000 TB",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (0.0314, 9.96, 119, 120, 7300, 300_000)] == [
        "31 ms", "10.0 s", "119 s", "2 min", "2 h 1 min", "3 d 11 h",
    ]  # fmt: skip
    assert [dollars(amount) for amount in (0, 1e-5, 0.0123, -0.5, 12_345.678)] == [
        "$0.00",
        "under $0.0001",
        "$0.0123",
        "-$0.50",
        "$12,345.68",
    ]


def test_in_shadow_all_is_told_as_what_would_be_and_what_is_unknown_as_unknown() -> None:
    shadow = {"dollars": {"saved": 17.5}, "producers_slowed": "unknown: why"}
    page = Page(status(shadow=shadow))
    assert page.answer == "By links would be 98.7 %. $17.50 would be saved."
    for told in (
        "By links, would be",
        "Saved, would be",
        "not used",
        "$0.50 by links,",
        "unknown: why",
    ):
        assert told in page.text

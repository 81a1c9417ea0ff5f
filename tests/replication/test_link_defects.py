"""A defect of links costs links, never replication: the leader's bytes go inline, and links rest for a while."""

import itertools
import os
from collections.abc import Callable

import pytest

from replication.follower import hydrated_responses
from replication.leader import relay_core, response_links
from replication.leader.leader_relay import LeaderRelay
from replication.leader.link_planner import LinkPlanner
from replication.wire.link import encode_linked_response, splice
from replication.wire.peer_protocol import Announcement
from rlm.write_path.commit.link_policy import LinkMode
from tests.kafka_log.batches import batch, batches
from tests.replication.two_agents import Agents, two_agents

CANNOT_BE_DECODED = b"\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
LONGER_THAN_ANY_REST_S = 10_000.0


def defect(*_: object, **__: object) -> None:
    raise KeyError("what nobody thought of")


async def fetches_inline_then_links_again(agents: Agents, mend: Callable[[], None]) -> None:
    """The response that meets the defect and the next one come inline on one connection; after the rest, links."""
    raw = [batches(1, offset, payload=b"%d" % offset * 100) for offset in range(3)]
    follower = await agents.connect()
    agents.append({0: raw[0]})
    assert await follower.fetch({0: 0}) == follower.expected({0: raw[0]})
    linked = agents.linked_responses
    mend()
    agents.append({0: raw[1]})
    assert await follower.fetch({0: 1}) == follower.expected({0: raw[1]})
    assert agents.linked_responses == linked

    agents.now_s += LONGER_THAN_ANY_REST_S
    agents.append({0: raw[2]})
    assert await follower.fetch({0: 2}) == follower.expected({0: raw[2]})
    assert agents.linked_responses == linked + 1


async def test_a_linked_response_that_cannot_be_decoded_is_asked_for_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_agents() as agents:
        monkeypatch.setattr(response_links, "encode_linked_response", lambda _: [CANNOT_BE_DECODED])
        await fetches_inline_then_links_again(
            agents, lambda: monkeypatch.setattr(response_links, "encode_linked_response", encode_linked_response)
        )
        assert agents.follower_faults("link_defect_malformed") == 1
        assert agents.follower_faults("inline_requested_defect") == 1
        assert agents.leader_faults("inline_requested_by_follower") == 1


async def test_a_defect_of_splicing_is_asked_for_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_agents() as agents:
        monkeypatch.setattr(hydrated_responses, "splice", defect)
        await fetches_inline_then_links_again(agents, lambda: monkeypatch.setattr(hydrated_responses, "splice", splice))
        assert agents.follower_faults("link_defect_splicing") == 1


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (LinkPlanner, "begin"),
        (LinkPlanner, "decide"),
        (response_links, "encode_linked_response"),
    ],
)
async def test_a_defect_of_planning_sends_the_original(
    owner: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_agents() as agents:
        whole = getattr(owner, name)
        monkeypatch.setattr(owner, name, defect)
        await fetches_inline_then_links_again(agents, lambda: monkeypatch.setattr(owner, name, whole))
        assert agents.leader_faults("link_defect_planning") == 1
        assert agents.leader_faults("inline_requested_by_follower") == 0


async def test_a_defect_of_reading_requests_passes_them_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_agents() as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        monkeypatch.setattr(relay_core, "scan_fetch_request", defect)
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.leader_faults("link_defect_request") == 1


async def test_each_further_defect_doubles_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_agents() as agents:
        monkeypatch.setattr(LinkPlanner, "decide", defect)
        follower = await agents.connect()
        agents.append({0: batches(1, 0)})
        defects = []
        for _ in range(100):
            await follower.fetch({0: 0})
            defects.append(agents.leader_faults("link_defect_planning"))
            agents.now_s += 1.0
        times = [second for second, count in enumerate(defects) if second == 0 or count > defects[second - 1]]
        assert [later - earlier for earlier, later in itertools.pairwise(times)] == [10, 20, 40]


async def test_after_a_message_that_ends_the_connection_the_next_one_begins_without_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_agents() as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        with monkeypatch.context() as broken:
            broken.setattr(LeaderRelay, "send", lambda relay, _: relay.peer.write_frame(b"\x7f is no kind"))
            agents.led.mode = LinkMode.OFF
            follower = await agents.connect()
            assert await follower.fetch({0: 0}) is None
            agents.led.mode = LinkMode.LINK
        assert agents.follower_faults("link_defect_connection") == 1

        follower = await agents.connect()
        linked = agents.linked_responses
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.linked_responses == linked
        assert agents.leader_faults("links_paused") == 1


async def test_a_fetcher_that_reconnects_for_ever_gets_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower's agent cannot name the response: the leader has kept none under the id that it asks for."""
    async with two_agents() as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        monkeypatch.setattr(response_links, "encode_linked_response", lambda _: [CANNOT_BE_DECODED])
        monkeypatch.setattr(response_links, "decode_inline_request", lambda _: -1)
        answers = []
        for _ in range(3):
            follower = await agents.connect()
            answers.append(await follower.fetch({0: 0}) == follower.expected({0: raw}))
        assert answers == [False, True, True]


async def test_an_announcement_that_cannot_be_decoded_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_agents() as agents:
        follower = await agents.connect()
        await follower.fetch({0: 0})
        monkeypatch.setattr(Announcement, "encode", lambda _: b"half of one")
        raw = batches(1, 0)
        agents.append({0: raw})
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        await agents.until(lambda: agents.follower_faults("link_defect_announcement") == 1)
        assert await follower.fetch({0: 1}) == follower.expected({0: b""})


async def test_a_response_above_the_size_of_a_request_is_linked_as_it_is_relayed() -> None:
    """Brokers answer with more than socket.request.max.bytes, which bounds requests alone."""
    async with two_agents(max_frame_bytes=4000) as agents:
        raw = batch(0, 1, 0, os.urandom(5500))
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.linked_responses == 1
        assert agents.leader_faults("inline_requested_by_follower") == 0


async def test_the_largest_response_that_is_relayed_passes_inline_too() -> None:
    async with two_agents(max_frame_bytes=10_000) as agents:
        follower = await agents.connect()
        size = 20_000 - len(follower.expected({0: b""}))
        raw = batch(0, 1, 0, os.urandom(size - 100))
        follower.correlation_id = 101
        raw = batch(0, 1, 0, os.urandom(size - 100 + 20_000 - len(follower.expected({0: raw}))))
        assert len(follower.expected({0: raw})) == 20_000
        follower.correlation_id = 100
        agents.append({0: raw}, stored=False)
        agents.led.expected = False
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})


async def test_a_defect_of_one_connection_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with two_agents() as agents:
        monkeypatch.setattr(response_links, "encode_linked_response", lambda _: [CANNOT_BE_DECODED])
        follower = await agents.connect()
        agents.append({0: batches(1, 0)})
        for _ in range(3):
            await follower.fetch({0: 0})
        assert capsys.readouterr().out.count("link_defect") == 1

"""What the cluster says of quotas and topics, before the gateway answers consumers."""

import asyncio
from collections.abc import Callable, Collection, Mapping

import pytest

from gateway.serve.serve_permission import ClusterServePermission, ServeRestrictions, limited_clients
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import ClientQuota
from kafka_log.topic_partition import TopicId

CONSUMERS = "consumer_byte_rate"
ONE, TWO = TopicId(b"1" * 16), TopicId(b"2" * 16)


def quota(entity: Mapping[str, str | None], key: str = CONSUMERS) -> ClientQuota:
    return ClientQuota(entity, frozenset({key}))


@pytest.mark.parametrize(
    "entity", [{"user": "u"}, {"user": None}, {"client-id": None}, {"user": "u", "client-id": "c"}, {"ip": "::1"}, {}]
)
def test_a_quota_that_may_apply_to_any_client_limits_all(entity: Mapping[str, str | None]) -> None:
    assert limited_clients([quota(entity)]) is None
    assert limited_clients([quota(entity, "request_percentage")]) is None
    assert limited_clients([quota(entity, "producer_byte_rate")]) == frozenset()


def test_a_quota_of_one_client_id_limits_that_one() -> None:
    assert limited_clients([quota({"client-id": "a"}), quota({"client-id": "b"})]) == frozenset({"a", "b"})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the question is in a thread
            await asyncio.sleep(0.001)


async def test_after_an_unexpected_error_the_cluster_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def ask(topics: Collection[TopicId]) -> ServeRestrictions:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ValueError("a value that nobody expected")
        return ServeRestrictions([], topics)

    monkeypatch.setattr("gateway.serve.serve_permission.ASK_S", 0.001)
    serve_permission = ClusterServePermission(ask, lambda: 100.0)
    running = asyncio.get_running_loop().create_task(serve_permission.run())
    assert not serve_permission.is_kept_whole(ONE, 100.0)
    await until(lambda: running.done() or serve_permission.is_kept_whole(ONE, 100.0))
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_nothing_is_allowed_before_the_cluster_has_answered_nor_when_that_is_long_ago() -> None:
    now_s, fails = 100.0, False

    def ask(topics: Collection[TopicId]) -> ServeRestrictions:
        if fails:
            raise KafkaClusterError("describe client quotas", "broker", "refused")
        return ServeRestrictions([quota({"client-id": "limited"})], [one for one in topics if one == ONE])

    serve_permission = ClusterServePermission(ask, lambda: now_s)
    running = asyncio.get_running_loop().create_task(serve_permission.run())
    assert serve_permission.has_quota("free", now_s)
    assert not serve_permission.is_kept_whole(ONE, now_s)
    assert not serve_permission.is_kept_whole(TWO, now_s)
    await until(lambda: not serve_permission.has_quota("free", now_s))
    assert serve_permission.has_quota("limited", now_s)
    assert serve_permission.is_kept_whole(ONE, now_s)
    assert not serve_permission.is_kept_whole(TWO, now_s), "it is compacted"
    fails, now_s = True, now_s + 20.0
    assert serve_permission.has_quota("free", now_s)
    assert not serve_permission.is_kept_whole(ONE, now_s)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

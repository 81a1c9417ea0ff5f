"""Kafka's admin requests through an agent: our keys are taken out, the broker decides, answers are merged."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.metadata import MetadataRequest
from prometheus_client import CollectorRegistry

from gateway.admin.admin_port import AdminContext, AdminPort
from gateway.client_door import ClientLimits
from gateway.metrics import GatewayMetrics
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address
from tests.gateway.produce.produce_frames import produce

PATIENCE_S = 60
NO_ID = UUID(int=0)
TOPIC, BROKER = 2, 4
ENABLE, POLICY, BOUND = "remote.wal.storage.enable", "remote.wal.link.policy", "remote.wal.link.latency.bound.ms"
DURABLE = "remote.wal.durable.enable"
UPLOAD_WAIT = "remote.wal.link.upload.wait.max.ms"
OURS = [ENABLE, POLICY, BOUND, UPLOAD_WAIT, "remote.wal.archive.enable", "remote.wal.retention.ms", DURABLE]


class MemoryStore:
    """Settings that are nowhere else."""

    def __init__(self, settings: Mapping[str, TopicSettings] | None = None, is_away: bool = False) -> None:
        self.settings = dict(settings or {})
        self.is_away = is_away
        self.not_durable: str | None = None

    def read(self) -> Mapping[str, TopicSettings]:
        self._look("read")
        return self.settings

    def why_not_durable(self) -> str | None:
        self._look("read")
        return self.not_durable

    def topic_config(self, topic: str) -> Mapping[str, str | None]:
        self._look("read")
        return {"cleanup.policy": "compact" if topic.startswith("compacted") else "delete"}

    def write(self, settings: Mapping[str, TopicSettings]) -> None:
        self._look("write")
        self.settings.update(settings)

    def change(self, changes: Mapping[str, Callable[[TopicSettings], TopicSettings]]) -> None:
        self._look("write")
        for topic, change in changes.items():
            self.settings[topic] = change(self.settings.get(topic, TopicSettings()))

    def _look(self, what: str) -> None:
        if self.is_away:
            raise MetadataTopicError(what, "settings", "nobody answers")


class Broker:
    """Answers by a function of the request, and keeps what it was asked."""

    def __init__(self, request: Any, answer: Callable[[Any], Any]) -> None:
        self._request = request
        self._answer = answer
        self.asked: list[Any] = []
        self.frames: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            except asyncio.IncompleteReadError:
                writer.close()
                return
            self.frames.append(frame)
            version = int.from_bytes(frame[2:4], "big")
            request = self._request.decode(frame, version=version, header=True)
            self.asked.append(request)
            answer = self._answer(request)
            answer.with_header(request.header.correlation_id)
            writer.write(answer.encode(header=True, framed=True))


def creates(errors: Mapping[str, int], topic_id: UUID = NO_ID) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        topics = [
            CreateTopicsResponse.CreatableTopicResult(
                version=request.API_VERSION, name=one.name, error_code=errors.get(one.name, 0), error_message=None,
                num_partitions=1, replication_factor=1, configs=[], topic_id=topic_id,
            )
            for one in request.topics
        ]  # fmt: skip
        return CreateTopicsResponse(version=request.API_VERSION, throttle_time_ms=7, topics=topics)

    return answer


def alters(errors: Mapping[str, int], response: Any = IncrementalAlterConfigsResponse) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        kind = response.AlterConfigsResourceResponse
        responses = [
            kind(
                version=request.API_VERSION, error_code=errors.get(one.resource_name, 0), error_message=None,
                resource_type=one.resource_type, resource_name=one.resource_name,
            )
            for one in request.resources
        ]  # fmt: skip
        return response(version=request.API_VERSION, throttle_time_ms=0, responses=responses)

    return answer


def describes(errors: Mapping[str, int]) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        kind = DescribeConfigsResponse.DescribeConfigsResult
        version = request.API_VERSION
        results = [
            kind(
                version=version, error_code=errors.get(one.resource_name, 0), error_message=None,
                resource_type=one.resource_type, resource_name=one.resource_name,
                configs=[
                    kind.DescribeConfigsResourceResult(
                        version=version, name="retention.ms", value="5", read_only=False, config_source=1,
                        is_sensitive=False, synonyms=[], config_type=5, documentation=None,
                    )
                ],
            )
            for one in request.resources
        ]  # fmt: skip
        return DescribeConfigsResponse(version=version, throttle_time_ms=0, results=results)

    return answer


class Tool:
    """A client of the port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, registry: CollectorRegistry) -> None:
        self._reader, self._writer, self._registry = reader, writer, registry
        self._correlation_id = 0

    async def ask(self, request: Any, answer: Any, version: int) -> Any:
        self._correlation_id += 1
        request.with_header(self._correlation_id, "tool")
        self._writer.write(request.encode(version=version, header=True, framed=True))
        async with asyncio.timeout(PATIENCE_S):
            frame = await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))
        decoded = answer.decode(frame, version=version, header=True)
        assert decoded.header.correlation_id == self._correlation_id
        return decoded

    async def is_closed(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.read() == b""

    def send(self, frame: bytes) -> None:
        self._writer.write(len(frame).to_bytes(4, "big") + frame)

    def counted(self, outcome: str) -> float | None:
        return self._registry.get_sample_value("remote_wal_gateway_admin_requests_total", {"outcome": outcome})


@asynccontextmanager
async def connected(broker: Broker, store: MemoryStore, *, takes_records: bool = True) -> AsyncIterator[Tool]:
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    registry = CollectorRegistry()
    with ThreadPoolExecutor(1) as pool:
        port = AdminPort(
            AdminContext(
                Address(*server.sockets[0].getsockname()[:2]),
                store,
                pool,
                lambda: None,
                ClientLimits(10, 10, 0.0),
                GatewayMetrics(registry),
                MemoryBudget(),
                MemoryBudget(),
                takes_records,
            )
        )
        await port.start(Address("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(port.address.host, port.address.port)
        try:
            yield Tool(reader, writer, registry)
        finally:
            writer.close()
            await port.stop()
            server.close()


def create_request(version: int, topics: Mapping[str, Mapping[str, str]], *, validate_only: bool = False) -> Any:
    kind = CreateTopicsRequest.CreatableTopic
    made = [
        kind(
            version=version, name=name, num_partitions=1, replication_factor=1, assignments=[],
            configs=[kind.CreatableTopicConfig(version=version, name=key, value=text) for key, text in configs.items()],
        )
        for name, configs in topics.items()
    ]  # fmt: skip
    return CreateTopicsRequest(version=version, topics=made, timeout_ms=1000, validate_only=validate_only)


def alter_request(
    version: int, resources: Sequence[tuple[int, str, Sequence[tuple[str, int, str | None]]]], *, dry: bool = False
) -> Any:
    kind = IncrementalAlterConfigsRequest.AlterConfigsResource
    made = [
        kind(
            version=version, resource_type=its, resource_name=name,
            configs=[
                kind.AlterableConfig(version=version, name=key, config_operation=operation, value=text)
                for key, operation, text in configs
            ],
        )
        for its, name, configs in resources
    ]  # fmt: skip
    return IncrementalAlterConfigsRequest(version=version, resources=made, validate_only=dry)


def replace_request(version: int, asked: Mapping[str, Sequence[tuple[str, str | None]]], *, dry: bool = False) -> Any:
    kind = AlterConfigsRequest.AlterConfigsResource
    made = [
        kind(
            version=version, resource_type=TOPIC, resource_name=name,
            configs=[kind.AlterableConfig(version=version, name=key, value=text) for key, text in configs],
        )
        for name, configs in asked.items()
    ]  # fmt: skip
    return AlterConfigsRequest(version=version, resources=made, validate_only=dry)


def describe_request(version: int, asked: Mapping[str, list[str] | None], *, kind: int = TOPIC) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    made = [
        resource(version=version, resource_type=kind, resource_name=name, configuration_keys=keys)
        for name, keys in asked.items()
    ]
    return DescribeConfigsRequest(version=version, resources=made, include_synonyms=True, include_documentation=True)


@pytest.mark.parametrize("version", [2, 5, 7])
async def test_a_topic_is_created_by_the_broker_and_gets_our_settings(version: int) -> None:
    broker, store = Broker(CreateTopicsRequest, creates({"taken": 36})), MemoryStore()
    async with connected(broker, store) as tool:
        asked = {
            "made": {ENABLE: "true", "retention.ms": "5", POLICY: "always"},
            "taken": {ENABLE: "true"},
            "plain": {"retention.ms": "6"},
        }
        answer = await tool.ask(create_request(version, asked), CreateTopicsResponse, version)
        assert tool.counted("written") == 1
    assert {one.name: [key.name for key in one.configs] for one in broker.asked[0].topics} == {
        "made": ["retention.ms"],
        "taken": [],
        "plain": ["retention.ms"],
    }
    assert {one.name: one.error_code for one in answer.topics} == {"made": 0, "taken": 36, "plain": 0}
    assert answer.throttle_time_ms == 7
    assert store.settings == {"made": TopicSettings(enable=True, link_policy=LinkPolicy.ALWAYS)}


async def test_a_new_topic_gets_nothing_of_what_one_of_its_name_had() -> None:
    store = MemoryStore({"made": TopicSettings(True, LinkPolicy.ALWAYS, None, True)})
    async with connected(Broker(CreateTopicsRequest, creates({})), store) as tool:
        await tool.ask(create_request(7, {"made": {ENABLE: "true"}}), CreateTopicsResponse, 7)
    assert store.settings == {"made": TopicSettings(enable=True)}


async def test_settings_are_those_of_the_topic_that_was_created() -> None:
    topic_id = UUID(int=7)
    store = MemoryStore()
    async with connected(Broker(CreateTopicsRequest, creates({}, topic_id)), store) as tool:
        await tool.ask(create_request(7, {"made": {ENABLE: "true"}}), CreateTopicsResponse, 7)
    assert store.settings == {"made": TopicSettings(enable=True, topic_id=TopicId(topic_id.bytes))}


async def test_a_value_that_is_refused_keeps_the_topic_from_being_created() -> None:
    broker, store = Broker(CreateTopicsRequest, creates({})), MemoryStore()
    async with connected(broker, store) as tool:
        asked = {"wrong": {POLICY: "never"}, "made": {ENABLE: "true"}, "__consumer_offsets": {ENABLE: "true"}}
        answer = await tool.ask(create_request(7, asked), CreateTopicsResponse, 7)
    assert [one.name for one in broker.asked[0].topics] == ["made"]
    told = {one.name: (one.error_code, one.error_message or "") for one in answer.topics}
    assert told["made"][0] == 0
    assert told["wrong"][0] == told["__consumer_offsets"][0] == 40
    assert POLICY in told["wrong"][1]
    assert ENABLE in told["__consumer_offsets"][1]
    assert list(store.settings) == ["made"]


async def test_what_is_only_validated_is_not_written() -> None:
    store = MemoryStore()
    async with connected(Broker(CreateTopicsRequest, creates({})), store) as tool:
        request = create_request(7, {"made": {ENABLE: "true"}}, validate_only=True)
        await tool.ask(request, CreateTopicsResponse, 7)
    async with connected(Broker(IncrementalAlterConfigsRequest, alters({})), store) as tool:
        dry = alter_request(1, [(TOPIC, "made", [(ENABLE, 0, "true")])], dry=True)
        await tool.ask(dry, IncrementalAlterConfigsResponse, 1)
    assert store.settings == {}


@pytest.mark.parametrize("version", [0, 1])
async def test_an_alteration_changes_only_what_the_broker_lets_the_caller_alter(version: int) -> None:
    broker = Broker(IncrementalAlterConfigsRequest, alters({"forbidden": 29}))
    store = MemoryStore({"orders": TopicSettings(True, LinkPolicy.ALWAYS, 9)})
    async with connected(broker, store) as tool:
        asked: list[tuple[int, str, list[tuple[str, int, str | None]]]] = [
            (TOPIC, "orders", [(POLICY, 0, "latency"), ("retention.ms", 0, "5"), (BOUND, 1, None)]),
            (TOPIC, "forbidden", [(ENABLE, 0, "true")]),
            (BROKER, "1", [("log.cleaner.threads", 0, "2")]),
        ]
        answer = await tool.ask(alter_request(version, asked), IncrementalAlterConfigsResponse, version)
    # Our keys alone are no reason not to ask: it is the broker that authorises.
    seen = {one.resource_name: [key.name for key in one.configs] for one in broker.asked[0].resources}
    assert seen == {"orders": ["retention.ms"], "forbidden": [], "1": ["log.cleaner.threads"]}
    assert {one.resource_name: one.error_code for one in answer.responses} == {"orders": 0, "forbidden": 29, "1": 0}
    assert store.settings == {"orders": TopicSettings(True, LinkPolicy.LATENCY)}


@pytest.mark.parametrize(
    "change",
    [(POLICY, 0, "never"), (POLICY, 2, "cost"), (BOUND, 3, "1"), (ENABLE, 0, None)],
    ids=["no value of it", "appended to", "subtracted from", "null"],
)
async def test_a_refused_alteration_leaves_all_of_the_topic_as_it_is(change: tuple[str, int, str | None]) -> None:
    broker, store = Broker(IncrementalAlterConfigsRequest, alters({})), MemoryStore()
    async with connected(broker, store) as tool:
        asked: list[tuple[int, str, list[tuple[str, int, str | None]]]] = [
            (TOPIC, "orders", [("retention.ms", 0, "5"), change])
        ]
        answer = await tool.ask(alter_request(1, asked), IncrementalAlterConfigsResponse, 1)
        assert tool.counted("refused") == 1
    assert broker.asked[0].resources == []
    (told,) = answer.responses
    assert (told.error_code, told.resource_name, told.resource_type) == (40, "orders", TOPIC)
    assert change[0] in told.error_message
    assert store.settings == {}


async def test_a_key_named_twice_is_refused() -> None:
    store = MemoryStore()
    async with connected(Broker(IncrementalAlterConfigsRequest, alters({})), store) as tool:
        twice: list[tuple[str, int, str | None]] = [(ENABLE, 0, "true"), (ENABLE, 1, None)]
        answer = await tool.ask(alter_request(1, [(TOPIC, "orders", twice)]), IncrementalAlterConfigsResponse, 1)
    assert [one.error_code for one in answer.responses] == [40]
    assert store.settings == {}


async def test_who_alters_is_told_when_the_settings_could_not_be_written() -> None:
    broker, store = Broker(IncrementalAlterConfigsRequest, alters({})), MemoryStore(is_away=True)
    async with connected(broker, store) as tool:
        asked = [(TOPIC, "orders", [(ENABLE, 0, "true")]), (TOPIC, "plain", [("retention.ms", 0, "5")])]
        answer = await tool.ask(alter_request(1, asked), IncrementalAlterConfigsResponse, 1)
        assert tool.counted("not_written") == 1
    told = {one.resource_name: one for one in answer.responses}
    assert (told["orders"].error_code, told["plain"].error_code) == (-1, 0)
    assert "nobody answers" in told["orders"].error_message


async def test_keys_of_ours_that_nobody_knows_are_for_the_broker_to_refuse() -> None:
    broker = Broker(IncrementalAlterConfigsRequest, alters({"orders": 40}))
    store = MemoryStore()
    async with connected(broker, store) as tool:
        asked = [(TOPIC, "orders", [("remote.wal.unknown", 0, "1"), (ENABLE, 0, "true")])]
        answer = await tool.ask(alter_request(1, asked), IncrementalAlterConfigsResponse, 1)
    assert [key.name for key in broker.asked[0].resources[0].configs] == ["remote.wal.unknown"]
    assert [one.error_code for one in answer.responses] == [40]
    assert store.settings == {}


@pytest.mark.parametrize("version", [1, 2])
async def test_the_older_alteration_replaces_our_keys_as_it_does_kafkas(version: int) -> None:
    broker = Broker(AlterConfigsRequest, alters({"forbidden": 29}, AlterConfigsResponse))
    before = TopicSettings(True, LinkPolicy.ALWAYS, 9)
    store = MemoryStore(dict.fromkeys(["orders", "unnamed", "forbidden", "wrong", "twice"], before))
    async with connected(broker, store) as tool:
        asked: dict[str, list[tuple[str, str | None]]] = {
            "orders": [(ENABLE, "true"), ("retention.ms", "5"), (POLICY, "latency")],
            "unnamed": [("retention.ms", "5")],
            "forbidden": [("retention.ms", "5")],
            "wrong": [(POLICY, "never"), ("retention.ms", "5")],
            "twice": [(ENABLE, "true"), (ENABLE, "false")],
        }
        answer = await tool.ask(replace_request(version, asked), AlterConfigsResponse, version)
        assert tool.counted("written") == 1
    seen = {one.resource_name: [key.name for key in one.configs] for one in broker.asked[0].resources}
    assert seen == {topic: ["retention.ms"] for topic in ("orders", "unnamed", "forbidden")}
    told = {one.resource_name: one.error_code for one in answer.responses}
    assert told == {"orders": 0, "unnamed": 0, "forbidden": 29, "wrong": 40, "twice": 40}
    assert store.settings == {
        "orders": TopicSettings(True, LinkPolicy.LATENCY),
        "unnamed": TopicSettings(),
        **dict.fromkeys(["forbidden", "wrong", "twice"], before),
    }


async def test_an_older_alteration_that_is_only_validated_or_of_internal_topics_leaves_ours() -> None:
    before = TopicSettings(enable=True)
    store = MemoryStore({"orders": before})
    async with connected(Broker(AlterConfigsRequest, alters({}, AlterConfigsResponse)), store) as tool:
        for request in (
            replace_request(2, {"orders": [("retention.ms", "5")]}, dry=True),
            replace_request(2, {"__consumer_offsets": [("retention.ms", "5")]}),
        ):
            answer = await tool.ask(request, AlterConfigsResponse, 2)
            assert [one.error_code for one in answer.responses] == [0]
    assert store.settings == {"orders": before}


@pytest.mark.parametrize("version", [1, 3, 4])
async def test_a_description_has_our_keys_beside_the_brokers(version: int) -> None:
    broker = Broker(DescribeConfigsRequest, describes({"forbidden": 29}))
    store = MemoryStore({"orders": TopicSettings(True, LinkPolicy.COST, 250), "forbidden": TopicSettings(enable=True)})
    async with connected(broker, store) as tool:
        asked: dict[str, list[str] | None] = {"orders": None, "forbidden": None, "one": [POLICY, "retention.ms"]}
        answer = await tool.ask(describe_request(version, asked), DescribeConfigsResponse, version)
        assert tool.counted("described") == 1
    described = {one.resource_name: {key.name: key for key in one.configs} for one in answer.results}
    assert list(described["orders"]) == ["retention.ms", *OURS]
    assert list(described["forbidden"]) == ["retention.ms"]
    assert list(described["one"]) == ["retention.ms", POLICY]
    told = {name: (key.value, key.config_source) for name, key in described["orders"].items()}
    assert (told[ENABLE], told[BOUND], told[POLICY]) == (("true", 1), ("250", 1), ("cost", 5))
    assert [(one.value, one.source) for one in described["orders"][ENABLE].synonyms] == [("true", 1), ("false", 5)]
    if version >= 3:
        assert (described["orders"][ENABLE].config_type, described["orders"][BOUND].config_type) == (1, 5)
        assert described["orders"][ENABLE].documentation


async def test_a_description_goes_on_without_ours_while_they_cannot_be_read() -> None:
    broker = Broker(DescribeConfigsRequest, describes({}))
    async with connected(broker, MemoryStore(is_away=True)) as tool:
        answer = await tool.ask(describe_request(4, {"orders": None}), DescribeConfigsResponse, 4)
        assert tool.counted("not_read") == 1
    assert [key.name for key in answer.results[0].configs] == ["retention.ms"]


async def test_of_other_resources_and_internal_topics_the_broker_tells_alone() -> None:
    broker = Broker(DescribeConfigsRequest, describes({}))
    async with connected(broker, MemoryStore(is_away=True)) as tool:
        brokers = await tool.ask(describe_request(4, {"1": None}, kind=BROKER), DescribeConfigsResponse, 4)
        internal = await tool.ask(describe_request(4, {"__consumer_offsets": None}), DescribeConfigsResponse, 4)
        assert tool.counted("not_read") is None
    assert [len(answer.results[0].configs) for answer in (brokers, internal)] == [1, 1]


async def test_what_is_no_admin_request_passes_as_it_is() -> None:
    received = asyncio.Event()
    frames: list[bytes] = []

    class Silent(Broker):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(2):
                frames.append(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
            received.set()
            writer.close()

    request = MetadataRequest(version=12, topics=[])
    request.with_header(1, "tool")
    plain = bytes(request.encode(version=12, header=True))
    # Of an admin request too, what is not understood: here with a field that no version has.
    odd = create_request(7, {"made": {ENABLE: "true"}})
    odd.with_header(2, "tool")
    odd_frame = bytes(odd.encode(version=7, header=True)) + b"?"
    async with connected(Silent(MetadataRequest, lambda _: None), MemoryStore()) as tool:
        tool.send(plain)
        tool.send(odd_frame)
        async with asyncio.timeout(PATIENCE_S):
            await received.wait()
        assert tool.counted("not_understood") == 1
    assert frames == [plain, odd_frame]


async def test_an_answer_that_nobody_understands_ends_the_connection_and_writes_nothing() -> None:
    class Odd(Broker):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            answer = frame[4:8] + b"\0" + b"\xff" * 20
            writer.write(len(answer).to_bytes(4, "big") + answer)
            await reader.read()
            writer.close()

    store = MemoryStore()
    async with connected(Odd(DescribeConfigsRequest, describes({})), store) as tool:
        with pytest.raises(IndexError):  # what came, the tool does not read either
            await tool.ask(describe_request(4, {"orders": None}), DescribeConfigsResponse, 4)
        assert tool.counted("not_understood") == 1
    async with connected(Odd(CreateTopicsRequest, creates({})), store) as tool:
        request = create_request(7, {"made": {ENABLE: "true"}})
        request.with_header(1, "tool")
        tool.send(bytes(request.encode(version=7, header=True)))
        assert await tool.is_closed()
    assert store.settings == {}


async def test_who_produces_at_a_port_past_which_answers_are_held_is_no_admin_tool() -> None:
    broker = Broker(CreateTopicsRequest, creates({}))
    async with connected(broker, MemoryStore(), takes_records=False) as tool:
        tool.send(produce({0: b""}))
        assert await tool.is_closed()
        assert tool.counted("produce_refused") == 1
    assert broker.frames == []


@pytest.mark.parametrize("away", [False, True])
async def test_no_topic_is_made_durable_where_answers_are_not_held(away: bool) -> None:
    broker, store = Broker(CreateTopicsRequest, creates({})), MemoryStore(is_away=away)
    store.not_durable = "answers are not held beside broker 2"
    async with connected(broker, store) as tool:
        asked = {"held": {ENABLE: "true", DURABLE: "true"}, "plain": {ENABLE: "true", DURABLE: "false"}}
        answer = await tool.ask(create_request(7, asked), CreateTopicsResponse, 7)
    told = {one.name: (one.error_code, one.error_message or "") for one in answer.topics}
    assert told["held"][0] == 40
    assert ("could not be read" if away else "beside broker 2") in told["held"][1]
    assert list(store.settings) == ([] if away else ["plain"])


KEPT = "remote.wal.retention.ms"


async def test_no_topic_is_made_that_keeps_objects_without_bound() -> None:
    broker, store = Broker(CreateTopicsRequest, creates({})), MemoryStore()
    asked = {
        "table": {ENABLE: "true", KEPT: "-2", "cleanup.policy": "compact"},
        "log": {ENABLE: "true", KEPT: "-2", "cleanup.policy": "delete"},
        "endless": {ENABLE: "true", KEPT: "-1", "cleanup.policy": "compact"},
    }
    async with connected(broker, store) as tool:
        answer = await tool.ask(create_request(7, asked), CreateTopicsResponse, 7)
    told = {one.name: (one.error_code, one.error_message or "") for one in answer.topics}
    assert told["table"][0] == 40
    assert "grow without bound" in told["table"][1]
    assert set(store.settings) == {"log", "endless"}


@pytest.mark.parametrize(
    ("topic", "policy", "is_refused"),
    [("compacted", None, True), ("compacted", "delete", False), ("orders", None, False), ("orders", "compact", True)],
)
async def test_no_topic_comes_to_keep_objects_without_bound(topic: str, policy: str | None, is_refused: bool) -> None:
    broker, store = Broker(IncrementalAlterConfigsRequest, alters({})), MemoryStore()
    changes = [(KEPT, 0, "-2"), *([("cleanup.policy", 0, policy)] if policy else [])]
    async with connected(broker, store) as tool:
        answer = await tool.ask(alter_request(1, [(TOPIC, topic, changes)]), IncrementalAlterConfigsResponse, 1)
    [one] = answer.responses
    assert (one.error_code == 40, topic not in store.settings) == (is_refused, is_refused)

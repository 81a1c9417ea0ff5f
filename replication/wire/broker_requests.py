"""Decides which requests one broker may send another through the agents. Sans-IO.

The inter-broker listener takes every request that Kafka has, with the rights of a broker's principal. Requests reach it
from other agents or from any process on the agent's host. So both agents on the way pass only the requests that brokers
are known to send each other. Any other ends its connection, as at a broker one for an API that its listener lacks.

Source: Kafka's ReplicaFetcherThread, TransactionMarkerChannelManager, AddPartitionsToTxnManager, PersisterStateManager,
ShareGroupDLQStateManager and TopicBasedRemoteLogMetadataManager, 3.9 to 4.4.
"""

from collections.abc import Iterable

from kafka_log.crc32c import Buffer
from replication.wire.peer_protocol import PeerRefusedError

_NAMES_BY_KEY = """
Produce Fetch ListOffsets Metadata LeaderAndIsr StopReplica UpdateMetadata ControlledShutdown OffsetCommit OffsetFetch
FindCoordinator JoinGroup Heartbeat LeaveGroup SyncGroup DescribeGroups ListGroups SaslHandshake ApiVersions
CreateTopics DeleteTopics DeleteRecords InitProducerId OffsetForLeaderEpoch AddPartitionsToTxn AddOffsetsToTxn EndTxn
WriteTxnMarkers TxnOffsetCommit DescribeAcls CreateAcls DeleteAcls DescribeConfigs AlterConfigs AlterReplicaLogDirs
DescribeLogDirs SaslAuthenticate CreatePartitions CreateDelegationToken RenewDelegationToken ExpireDelegationToken
DescribeDelegationToken DeleteGroups ElectLeaders IncrementalAlterConfigs AlterPartitionReassignments
ListPartitionReassignments OffsetDelete DescribeClientQuotas AlterClientQuotas DescribeUserScramCredentials
AlterUserScramCredentials Vote BeginQuorumEpoch EndQuorumEpoch DescribeQuorum AlterPartition UpdateFeatures Envelope
FetchSnapshot DescribeCluster DescribeProducers BrokerRegistration BrokerHeartbeat UnregisterBroker
DescribeTransactions ListTransactions AllocateProducerIds ConsumerGroupHeartbeat ConsumerGroupDescribe
ControllerRegistration GetTelemetrySubscriptions PushTelemetry AssignReplicasToDirs ListConfigResources
DescribeTopicPartitions ShareGroupHeartbeat ShareGroupDescribe ShareFetch ShareAcknowledge AddRaftVoter
RemoveRaftVoter UpdateRaftVoter InitializeShareGroupState ReadShareGroupState WriteShareGroupState
DeleteShareGroupState ReadShareGroupStateSummary StreamsGroupHeartbeat StreamsGroupDescribe DescribeShareGroupOffsets
AlterShareGroupOffsets DeleteShareGroupOffsets StreamsGroupTopologyDescriptionUpdate UnregisterController
"""
_NAMES = tuple(_NAMES_BY_KEY.split())
"""Kafka's names, in the order of the API keys."""

BROKER_REQUESTS = {
    "replica fetchers": ("Fetch", "ListOffsets", "OffsetForLeaderEpoch"),
    "SASL logins": ("ApiVersions", "SaslHandshake", "SaslAuthenticate"),
    "transactions": ("WriteTxnMarkers", "AddPartitionsToTxn"),
    "share groups": (
        "FindCoordinator",
        "InitializeShareGroupState",
        "ReadShareGroupState",
        "WriteShareGroupState",
        "DeleteShareGroupState",
        "ReadShareGroupStateSummary",
    ),
    "dead-letter queues of share groups (KIP-1191, from 4.4 on)": ("CreateTopics", "Produce"),
}
"""The requests that brokers send each other, by purpose."""
METADATA_MANAGER_REQUESTS = (
    "ApiVersions",
    "Metadata",
    "DescribeTopicPartitions",
    "CreateTopics",
    "InitProducerId",
    "Produce",
    "ListOffsets",
    "OffsetForLeaderEpoch",
    "Fetch",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
)
"""The requests that the clients of KIP-405's own metadata manager send. Broker settings name the listener they use."""
ALL_REQUESTS = "*"
_KEY_BYTES = 2


class RequestRefusedError(PeerRefusedError):
    """Brokers may not send this request through agents. `api` is its name, from a bounded set."""

    def __init__(self, api: str, reason: str) -> None:
        self.api = api
        super().__init__(reason)


def parse_request_names(value: object) -> object:
    """Parse a list such as `Produce,Metadata,93`: names of Kafka's requests, API keys, or `*` for all."""
    if not isinstance(value, str):
        return value
    names = frozenset(filter(None, (part.strip() for part in value.split(","))))
    for name in names:
        if name not in _NAMES and name != ALL_REQUESTS and not name.isdecimal():
            raise ValueError(f"{name!r} is no request of Kafka's protocol")
    return names


class BrokerRequests:
    """The kinds of requests that brokers may send each other through agents."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        """`more` adds to what brokers send each other: names, keys, or `*` for all."""
        named = {name for group in BROKER_REQUESTS.values() for name in group}.union(more)
        self._pass_all = ALL_REQUESTS in named
        self._keys = {int(name) if name.isdecimal() else _NAMES.index(name) for name in named if name != ALL_REQUESTS}

    def check(self, frame: Buffer) -> None:
        """Raise RequestRefusedError if the request may not pass."""
        key = int.from_bytes(frame[:_KEY_BYTES], "big")
        if self._pass_all or (key in self._keys and len(frame) >= _KEY_BYTES):
            return
        name = _NAMES[key] if key < len(_NAMES) else "unknown"
        raise RequestRefusedError(name, f"{name} (API key {key}) is nothing that brokers ask each other")

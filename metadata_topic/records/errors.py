"""Errors of the metadata topics. Each names the operation, its key, and what may help."""

from kafka_cluster.errors import KafkaClusterError


class MetadataTopicError(KafkaClusterError):
    """A metadata topic could not be made, read or written."""


class PublicationBacklogFullError(MetadataTopicError):
    """Too much metadata waits to be published, so this record was not accepted.

    The caller must stop uploading until it drains: an object whose metadata is lost would be an orphan.
    """


class MetadataRecordTooLargeError(MetadataTopicError):
    """The record is larger than the topic's limit, so it can never be published. Nothing was queued."""

    retriable = False


class TopicSetupError(MetadataTopicError):
    """A metadata topic cannot be made as configured; `key` is the setting to change."""


class TopicAbsentError(MetadataTopicError):
    """The topic does not exist: no agent has ever started."""


class TopicSettingsError(MetadataTopicError):
    """A topic's settings are not acceptable, for instance because the topic is Kafka's own."""

    retriable = False


class SnapshotError(MetadataTopicError):
    """A snapshot of the metadata store is damaged, of another cluster, or of another format version. The topic has
    everything that was in it."""

    retriable = False

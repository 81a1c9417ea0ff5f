"""Errors of the metadata topics. Each names the operation, its key, and what may help."""

from kafka_cluster.errors import KafkaClusterError


class MetadataTopicError(KafkaClusterError):
    """A metadata topic could not be made, read or written."""


class PublicationBacklogFullError(MetadataTopicError):
    """Too much metadata waits to be published, so no more is accepted.

    The caller must stop uploading until it drains: an object whose metadata is lost would be an orphan.
    """


class MetadataRecordTooLargeError(MetadataTopicError):
    """The record can never be published: it is above the cap. Nothing was queued."""

    retriable = False


class TopicSetupError(MetadataTopicError):
    """A metadata topic cannot be made as configured; `key` is the setting to change."""


class TopicNotKnownError(TopicSetupError):
    """The broker that was asked does not know the topic; a new topic may become known to it in a moment."""


class TopicAbsentError(MetadataTopicError):
    """The topic does not exist: no agent has ever started."""


class TopicSettingsError(MetadataTopicError):
    """A topic's settings are not acceptable, for instance because the topic is Kafka's own."""

    retriable = False


class SnapshotError(MetadataTopicError):
    """A snapshot of the store is damaged, foreign, or of a newer version; the topic has everything that was in it."""

    retriable = False

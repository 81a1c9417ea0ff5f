"""The name under which this room speaks of a log's leader epochs."""

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs as LeaderEpochChain

__all__ = ["LeaderEpochChain"]

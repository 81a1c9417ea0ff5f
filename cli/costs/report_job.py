"""Makes the report of `remote-wal report`: its sources, by the options, then session, engine, report, output."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import BootstrapServer, CommandConfig, Json
from cli.progress import shown_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from kafka_cluster.client_config import KafkaClientConfig
    from plugin.prices import PriceTable
    from retention_job.page.report_data import ReportData
    from retention_job.settings import KafkaSource, Sources, StoreSections

_TIMEOUT_S = 30.0
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    bootstrap_server: BootstrapServer
    command_config: CommandConfig = None
    broker_config: Annotated[
        Path | None,
        typer.Option(
            help="A broker's server.properties: the store and life times of its agent. The store is listed.",
            exists=True,
            dir_okay=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    output: Annotated[str, typer.Option(help="Where the page and the tables go: a directory, hdfs:// or s3a://.")] = (
        "remote-wal-report"
    )
    full: Annotated[
        bool, typer.Option("--full", help="Read all again, not only what is new since the last run with this --output.")
    ] = False
    keep_days: Annotated[int, typer.Option(help="For how long findings of earlier runs are kept.", min=0)] = 90
    apply: Annotated[
        bool, typer.Option("--apply/--dry-run", help="Hand safe deletions to the agents, or only count them.")
    ] = False
    prices: Annotated[
        Path | None,
        typer.Option(help="A price file in the place of the one that comes along.", exists=True, dir_okay=False),
    ] = None
    json: Json = False
    textfile: Annotated[
        Path | None, typer.Option(help="Write figures for Prometheus' textfile collector to this file.")
    ] = None


def run_report(given: SourceOptions, options: RunOptions, master: str | None, memory: str | None) -> "ReportData":
    """Run the report job: open sources, run the queries, write the output.

    Raises RetentionJobError or PriceError when a source, a price or the output is missing; then nothing is committed.
    """
    from cli.connection import client_config
    from plugin.prices import EXPRESS, STANDARD, PriceTable

    cluster_id = _cluster_id_of(client_config(given.bootstrap_server, given.command_config))
    sources, sections = report_sources(
        _kafka_source(given.bootstrap_server, given.command_config),
        cluster_id,
        given.broker_config,
        f"{options.output.rstrip('/')}/state",
        not options.full,
    )
    prices = PriceTable.load(options.prices).with_network(sections.network)
    for section in {sections.wal, sections.archive, EXPRESS, STANDARD}:
        prices.store(section)  # a missing price must be reported now, not after the minutes that a run takes
    from pyspark.sql import SparkSession

    from retention_job.spark.session import spark_session

    with shown_progress("starting Spark") as tell:
        is_given = SparkSession.getActiveSession() is not None
        spark = spark_session(master, memory=memory)
        try:
            return _run(sources, sections, options, cluster_id, prices, spark, tell)
        finally:
            if not is_given:
                spark.stop()


def _run(
    sources: "Sources",
    sections: "StoreSections",
    options: RunOptions,
    cluster_id: str,
    prices: "PriceTable",
    spark: "SparkSession",
    progress: "Callable[[str], None]",
) -> "ReportData":
    from plugin.wall_clock import wall_ms
    from retention_job.page.report import make_report
    from retention_job.page.report_output import ReportOutput
    from retention_job.run import RunSettings, run

    now_ms = wall_ms()
    output = ReportOutput(spark, options.output)
    output.begin()
    result = run(RunSettings(sources, now_ms, run_id_of(now_ms), options.apply, progress), spark)
    progress("computing costs")
    report = make_report(result, prices, sections, output, cluster_id)
    progress("writing the report")
    report.write(output)
    result.finish()
    output.prune(result.history.run_id, now_ms - options.keep_days * _DAY_MS)
    return report.data


def run_id_of(now_ms: int) -> str:
    """Return a new run id; ids sort by time, and no two runs of one output have the same."""
    return datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%S") + f"{now_ms % 1000:03d}Z"


def report_sources(
    kafka: "KafkaSource", cluster_id: str, broker_config: Path | None, state_path: str, is_incremental: bool
) -> "tuple[Sources, StoreSections]":
    """Return what to read, and the sections of price tables for the stores.

    `broker_config` is a broker's server.properties, which names its agent's stores and retention. Without it, the
    agents' defaults count, and no store is listed. Raises AgentSettingsError, BrokerPropertiesError.
    """
    from agent.configuration import delete_grace_ms
    from agent.settings.setting_types import milliseconds
    from agent.settings_file import read_settings_file
    from retention_job.settings import LifeTimes, Sources, StoreListing, StoreSections

    if broker_config is None:
        return Sources(kafka, state_path, is_incremental=is_incremental), StoreSections()
    broker, settings = read_settings_file(broker_config)
    life_times = LifeTimes(delete_grace_ms(broker, settings), milliseconds(settings.lifecycle.uncommitted_ttl_s))
    sections = StoreSections(settings.storage.price_section, settings.archive.price_section, settings.price_network)
    listing = StoreListing(settings.store_spec(broker), cluster_id)
    spec = settings.archive_spec(broker)
    archive = None if spec is None else StoreListing(spec, cluster_id)
    return Sources(kafka, state_path, listing, is_incremental, life_times, archive), sections


def _kafka_source(bootstrap_server: str, command_config: Path | None) -> "KafkaSource":
    """Return the source with the Java properties unchanged for Spark's connector.

    Raises ClientPropertyError for a login that only librdkafka takes, OSError for an unreadable file.
    """
    from kafka_cluster.client_config import JAVA_CLIENT_KEYS, SECURITY, read_java_properties
    from kafka_cluster.errors import ClientPropertyError
    from retention_job.settings import KafkaSource

    properties = {} if command_config is None else read_java_properties(command_config)
    for key in sorted(properties.keys() - JAVA_CLIENT_KEYS):
        if key.startswith(SECURITY):  # Java would ignore it
            raise ClientPropertyError(
                f"{command_config}:", key, "Spark's client has no such setting", "use Java's name"
            )
    return KafkaSource(bootstrap_server, properties)


def _cluster_id_of(client: "KafkaClientConfig") -> str:
    """Return Kafka's cluster id, which object keys begin with. Blocks. Raises SourceError."""
    from kafka_cluster.cluster import KafkaCluster
    from kafka_cluster.errors import KafkaClusterError
    from retention_job.errors import SourceError

    try:
        return KafkaCluster(client, "remote-wal-report", _TIMEOUT_S).listing().cluster_id
    except KafkaClusterError as error:
        hint = "is it up, and reachable from here?"
        raise SourceError("ask for", client.bootstrap_servers, error.reason, hint) from error

"""How fast logs are rebuilt: beside a plain copy of the same objects, and beside Kafka's own catch-up.

One topic with three replicas is filled and uploaded. Then, in turns and from the same store: all its objects are
copied into files, and its logs are restored into files (checked, cut into segments, synced). Both read with the same
number of requests at a time, and end with fsync. Kafka's catch-up is what a broker of a stock cluster takes, with the
same load, from being registered with an empty log directory until it is in sync again.
"""

import json
import os
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from cli.recovery_sources import Sources, WhereToAsk, open_sources
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.store_spec import StoreSpec
from metadata_topic.client_config import KafkaClientConfig
from metadata_topic.settings_topic import SettingsWriter
from metadata_topic.topic_settings import LinkPolicy, TopicSettings
from perf.ladder import object_store
from recovery.broker_recovery import LostBroker, Selection, plan_broker
from recovery.drill import run_drill
from recovery.run_reader import RunReader

_TOPIC = "rebuild"
_LOST = 3
_RECORD_BYTES = 1000
_PATIENCE_S = 300.0
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """One measurement."""

    what: str
    store: str
    seconds: float
    megabytes: float

    @property
    def megabytes_per_s(self) -> float:
        return self.megabytes / self.seconds


def rebuild(
    megabytes: Annotated[int, typer.Option(min=1, help="Of records in the topic.")] = 300,
    partitions: Annotated[int, typer.Option(min=1)] = 6,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    threads: Annotated[int, typer.Option(min=1)] = 8,
    latency_ms: Annotated[int, typer.Option(min=0, help="The store's latency for PUT and for GET.")] = 5,
    store: Annotated[list[str] | None, typer.Option(help="directory, s3; both by default.")] = None,
    catch_up: Annotated[bool, typer.Option("--catch-up/--no-catch-up", help="Measure stock Kafka as well.")] = True,
    results: Annotated[Path, typer.Option(file_okay=False)] = Path("perf/results"),
) -> None:
    """Measure the rate of rebuilding logs from object storage; print a table and write JSON."""
    from rich.console import Console

    console = Console()
    results.mkdir(parents=True, exist_ok=True)
    rates: list[Rate] = []
    load = (megabytes * MEGABYTE // _RECORD_BYTES, partitions)
    with console.status("preparing") as line, tempfile.TemporaryDirectory(prefix="remote-wal-rebuild-") as place:
        for kind in store or ["directory", "s3"]:
            with object_store(kind, latency_ms) as spec, _credentials(spec):
                rates += _from_store(Path(place) / kind, spec, kind, load, (rounds, threads), line.update)
        if catch_up:
            line.update("Kafka's own catch-up")
            rates.append(_catch_up(Path(place) / "stock", load))
    document = {"megabytes": megabytes, "partitions": partitions, "threads": threads, "latency_ms": latency_ms}
    rows = [asdict(rate) | {"megabytes_per_s": rate.megabytes_per_s} for rate in rates]
    (results / "rebuild.json").write_text(json.dumps(document | {"rates": rows}, indent=1))
    _print(console, rates)


def _from_store(
    place: Path,
    spec: StoreSpec,
    kind: str,
    load: tuple[int, int],
    turns: tuple[int, int],
    tell: Callable[[str], None],
) -> list[Rate]:
    rounds, threads = turns
    rates: list[Rate] = []
    with LocalCluster.create(place, settings=ClusterSettings(agents=AgentsMode(spec)), progress=tell) as cluster:
        cluster.start()
        _make_topic(cluster, load[1], linked=True)
        tell(f"producing {load[0]:,} records")
        cluster.tools.produce(_TOPIC, records=load[0], record_bytes=_RECORD_BYTES, config={"acks": "all"})
        wait_until(lambda: not _lag_bytes(cluster), "all is uploaded", _PATIENCE_S)
        config = cluster.layout.server_properties(_LOST)
        where = WhereToAsk(cluster.bootstrap_servers, None, None, None, from_objects=False)
        with open_sources(config, where, tell) as sources:
            cluster.stop()  # the cores belong to what is measured
            for number in range(rounds):
                tell(f"{kind}, round {number + 1} of {rounds}")
                rates.append(_timed("plain copy", kind, place / "copy", lambda to: _copy(sources, to, threads)))
                rates.append(_timed("rebuild", kind, place / "logs", lambda to: _restore(sources, to, threads)))
    return rates


def _timed(what: str, kind: str, directory: Path, work: Callable[[Path], int]) -> Rate:
    started = time.perf_counter()
    size = work(directory)
    seconds = time.perf_counter() - started
    shutil.rmtree(directory)
    os.sync()
    return Rate(what, kind, seconds, size / MEGABYTE)


def _copy(sources: Sources, directory: Path, threads: int) -> int:
    """All objects as they are, in parallel; the bytes of the objects."""
    directory.mkdir()
    stored = list(sources.storage.list_log_segments())

    def copy(number: int) -> int:
        one = stored[number]
        data = sources.storage.fetch_log_segment(one.combined_segment_id, 0, one.size_bytes)
        with (directory / str(number)).open("wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        return len(data)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(copy, range(len(stored))))


def _restore(sources: Sources, directory: Path, threads: int) -> int:
    """The logs of the topic; the bytes of the logs."""
    broker = sources.broker
    lost = LostBroker(broker.node_id, sources.cluster_id, broker.log_dirs, broker.log_dirs, broker.raw)
    selection = Selection(frozenset({_TOPIC}))
    planned = plan_broker(lost, sources.view, sources.inventory, selection, time.time_ns() // 1_000_000)
    restored = run_drill(directory, planned, RunReader(sources.storage, sources.archive), threads=threads)
    if any(log.gap for log in restored):
        raise RuntimeError("the rebuilt logs have gaps")
    return sum(log.written_bytes for log in restored)


def _catch_up(place: Path, load: tuple[int, int]) -> Rate:
    """A broker with an empty log directory, in a stock cluster."""
    # The controllers' logs stand apart, so that the directory can be erased.
    metadata = {number: {"metadata.log.dir": str(place.parent / f"controller-{number}")} for number in (1, 2, 3)}
    with LocalCluster.create(place, settings=ClusterSettings(broker_overrides=metadata)) as cluster:
        cluster.start()
        _make_topic(cluster, load[1], linked=False)
        cluster.tools.produce(_TOPIC, records=load[0], record_bytes=_RECORD_BYTES, config={"acks": "all"})
        cluster.kill_broker(_LOST)
        [log_directory] = cluster.log_directories(_LOST)
        size = sum(path.stat().st_size for path in log_directory.glob(f"{_TOPIC}-*/*.log"))
        identity = (log_directory / "meta.properties").read_text()
        shutil.rmtree(log_directory)
        log_directory.mkdir()
        (log_directory / "meta.properties").write_text(identity)
        out_of_sync = lambda: all(_LOST not in isr for isr in cluster.in_sync_replicas(_TOPIC).values())  # noqa: E731
        wait_until(out_of_sync, "the broker is out of sync", _PATIENCE_S)
        cluster.start_broker(_LOST)
        started = time.perf_counter()
        cluster.admin.wait_for_full_isr(_TOPIC, timeout_s=_PATIENCE_S)
        return Rate("Kafka's own catch-up", "network", time.perf_counter() - started, size / MEGABYTE)


def _make_topic(cluster: LocalCluster, partitions: int, *, linked: bool) -> None:
    cluster.create_topic(_TOPIC, partitions=partitions)
    if linked:
        writer = SettingsWriter(KafkaClientConfig(cluster.bootstrap_servers))
        writer.set_topic(_TOPIC, TopicSettings(True, LinkPolicy.COST))
        writer.close()
        wait_until(lambda: len(_led(cluster)) == partitions, "the agents lead the topic", _PATIENCE_S)


def _led(cluster: LocalCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for broker_id in cluster.broker_ids:
        url = f"http://{cluster.layout.agent_http_address(broker_id)}/describe"
        with urllib.request.urlopen(url, timeout=5) as answer:
            found += [one for one in json.load(answer)["partitions"] if one["topic"] == _TOPIC]
    return found


def _lag_bytes(cluster: LocalCluster) -> int:
    return sum(int(one["lag_bytes"]) for one in _led(cluster))


@contextmanager
def _credentials(spec: StoreSpec) -> Iterator[None]:
    """The store's, for this process too."""
    before = {name: os.environ.get(name) for name in spec.environment()}
    os.environ.update(spec.environment())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _print(console: Any, rates: list[Rate]) -> None:
    from rich.table import Table

    table = Table("store", "what", title="Rebuilding logs")
    for column in ("MB", "s", "MB/s (median)", "of the copy"):
        table.add_column(column, justify="right")
    for store in dict.fromkeys(rate.store for rate in rates):
        copies = [rate.megabytes_per_s for rate in rates if (rate.store, rate.what) == (store, "plain copy")]
        for what in dict.fromkeys(rate.what for rate in rates if rate.store == store):
            those = [rate for rate in rates if (rate.store, rate.what) == (store, what)]
            speed = median(rate.megabytes_per_s for rate in those)
            share = f"{speed / median(copies):.2f}" if copies else "-"
            seconds = median(rate.seconds for rate in those)
            table.add_row(store, what, f"{those[0].megabytes:,.0f}", f"{seconds:.1f}", f"{speed:,.0f}", share)
    console.print(table)

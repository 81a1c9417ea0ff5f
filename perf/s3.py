"""What a PUT and a ranged GET of S3 cost the agent's process, by our own client and by boto3, in turns.

The store is the S3 look-alike of this machine, or, with `--native`, a native server, by http and by https. One
thread asks; its process's CPU is what counts, the server is another process.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer

from cli.connection import Json
from cli.tables import show, table, tell_json
from local_cluster.object_store.native import start_native_store
from local_cluster.object_store.process import start_object_store
from local_cluster.object_store.server import DEFAULT_BUCKET, DEFAULT_DIRECTORY_BUCKET
from perf.options import Rounds
from plugin.clients.backend_settings import parse_settings
from plugin.clients.object_store import ObjectStore
from plugin.object_wal_storage_manager import ObjectWalStorageManager
from plugin.s3 import S3WalStorageManager
from plugin.s3_express import S3ExpressWalStorageManager

CLIENTS: Final = ("direct", "boto3")
_WARM_UP: Final = 10
_LOGIN: Final = ("benchmark", "benchmark-secret")

Settings = dict[str, str]


@dataclass(slots=True)
class Pair:
    """One kind of request to one store; milliseconds for each request, a value for each round."""

    store: str
    request: str
    cpu_ms: dict[str, list[float]] = field(default_factory=lambda: {client: [] for client in CLIENTS})
    wall_ms: dict[str, list[float]] = field(default_factory=lambda: {client: [] for client in CLIENTS})

    @property
    def times_cheaper(self) -> float:
        """The median over the rounds of boto3's CPU to ours, as both saw the machine at the same time."""
        ours, theirs = (self.cpu_ms[one] for one in CLIENTS)
        return median(they / we for we, they in zip(ours, theirs, strict=True))


def s3(
    rounds: Rounds = 7,
    requests: Annotated[int, typer.Option(min=1, help="Of each kind, by each client, in each round.")] = 50,
    kb: Annotated[int, typer.Option(min=1, help="Of each object.")] = 250,
    native: Annotated[bool, typer.Option(help="A server in Go in place of the look-alike.")] = False,
    json: Json = False,
) -> None:
    """Measure the CPU of a PUT and of a ranged GET, by our own client of S3 and by boto3."""
    with tempfile.TemporaryDirectory(prefix="remote-wal-s3-") as directory, ExitStack() as stack:
        stores = _native(Path(directory)) if native else _look_alike(Path(directory))
        body = os.urandom(kb * 1000)
        pairs = []
        for name, kind, settings in stack.enter_context(stores):
            pairs += measure(name, kind, settings, body, rounds, requests)
    if json:
        tell_json([{**asdict(pair), "times_cheaper": pair.times_cheaper} for pair in pairs])
        return
    rows = [
        (
            pair.store,
            pair.request,
            *(f"{median(pair.cpu_ms[one]):.2f}" for one in CLIENTS),
            f"{pair.times_cheaper:.1f}",
            *(f"{median(pair.wall_ms[one]):.2f}" for one in CLIENTS),
        )
        for pair in pairs
    ]
    columns = (f">{what}, {client}" for what in ("CPU ms", "ms") for client in CLIENTS)
    first, second, *others = columns
    show(table("store", "request", first, second, ">times cheaper", *others, rows=rows, title=f"{kb} KB, medians"))


def measure(
    name: str, kind: type[ObjectWalStorageManager], settings: Settings, body: bytes, rounds: int, requests: int
) -> list[Pair]:
    """A store's pairs: each client's turn follows the other's, in each round."""
    put, get = pairs = [Pair(name, "PUT"), Pair(name, "GET")]
    with ExitStack() as stack:
        stores = {
            client: stack.enter_context(closing(_opened(kind, {**settings, "client": client}))) for client in CLIENTS
        }
        for number in range(-1, rounds):
            for client, store in stores.items():
                keys = [f"{name}/{client}/{number}/{one}" for one in range(requests if number >= 0 else _WARM_UP)]
                put_ms = _timed(partial(_put, store, body), keys)
                get_ms = _timed(partial(_get, store, body), keys)
                if number < 0:
                    continue
                for pair, (cpu_ms, wall_ms) in ((put, put_ms), (get, get_ms)):
                    pair.cpu_ms[client].append(cpu_ms)
                    pair.wall_ms[client].append(wall_ms)
    return pairs


def _put(store: ObjectStore, body: bytes, key: str) -> None:
    store.put_if_absent(key, [body])


def _get(store: ObjectStore, body: bytes, key: str) -> None:
    store.get_range(key, 0, len(body))


def _timed(ask: Callable[[str], None], keys: list[str]) -> tuple[float, float]:
    cpu_s, begun = time.process_time(), time.perf_counter()
    for key in keys:
        ask(key)
    return (time.process_time() - cpu_s) / len(keys) * 1000, (time.perf_counter() - begun) / len(keys) * 1000


def _opened(kind: type[ObjectWalStorageManager], settings: Settings) -> ObjectStore:
    return kind().open_store(parse_settings(kind.settings_model, settings))


Stores = list[tuple[str, type[ObjectWalStorageManager], Settings]]
"""Name, backend and settings of each."""


def _settings(directory: Path, endpoint: str, bucket: str, login: tuple[str, str] = _LOGIN) -> Settings:
    credentials = directory / "credentials"
    key, secret = login
    credentials.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    return {
        "bucket": bucket,
        "region": "us-east-1",
        "endpoint.url": endpoint,
        "allow.http": "true",
        "credentials.file": str(credentials),
    }


@contextmanager
def _look_alike(directory: Path) -> Iterator[Stores]:
    server, endpoint = start_object_store(directory, DEFAULT_BUCKET, "--bucket", DEFAULT_DIRECTORY_BUCKET)
    try:
        yield [
            ("S3, http", S3WalStorageManager, _settings(directory, endpoint, DEFAULT_BUCKET)),
            ("S3 Express, http", S3ExpressWalStorageManager, _settings(directory, endpoint, DEFAULT_DIRECTORY_BUCKET)),
        ]
    finally:
        server.kill()


@contextmanager
def _native(directory: Path) -> Iterator[Stores]:
    with ExitStack() as stack:
        stores: Stores = []
        for scheme in ("http", "https"):
            place = directory / scheme
            place.mkdir()
            server, spec = start_native_store(place, DEFAULT_BUCKET, tls=scheme == "https")
            stack.callback(server.kill)
            login = spec.access_key_id, spec.secret_access_key
            settings = _settings(place, spec.endpoint_url, DEFAULT_BUCKET, login)
            stores.append((f"S3, {scheme}", S3WalStorageManager, {**settings, **spec.more_settings}))
        yield stores

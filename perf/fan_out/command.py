"""What one agent carries: it is real, and so is its broker, which leads everything; all others are played.

See `perf.fan_out.world` for who they are. What played followers cannot show is their own agents' work with links, and
whatever comes of many leaders at once.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from cli.connection import Json
from cli.tables import show, table, tell_json
from perf.fan_out.world import Carried, Shape, measure
from perf.options import LatencyMs

_BROKERS = (3, 10, 30)


def fan_out(
    brokers: Annotated[list[int] | None, typer.Option(min=3, help="So many; 3, 10 and 30 unless given.")] = None,
    objects_per_s: Annotated[float, typer.Option(min=0.1, help="Bursts, and so objects, that come each second.")] = 10,
    mb_per_s: Annotated[float, typer.Option(min=0.01, help="What is produced, all partitions together.")] = 5,
    partitions: Annotated[int, typer.Option(min=1, help="Led by the agent's broker.")] = 120,
    seconds: Annotated[float, typer.Option(min=1, help="Measured of each number of brokers.")] = 20,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds before that, and idle ones before these.")] = 8,
    latency_ms: LatencyMs = 5,
    json: Json = False,
) -> None:
    """Measure one agent's CPU for each object, and for each object and follower, among so many brokers."""
    shape = Shape(objects_per_s, mb_per_s, partitions, warm_up, seconds)
    carried = measure(sorted(set(brokers or _BROKERS)), shape, latency_ms)
    if json:
        tell_json({"shape": asdict(shape), "carried": documents(carried)})
    else:
        show(table(*_COLUMNS, rows=map(_row, documents(carried)), title="One agent", without_lines=True))


def documents(carried: Sequence[Carried]) -> list[dict[str, float | None]]:
    """For programs: what was measured, and what follows from it."""
    return [
        {
            **asdict(one),
            "cpu_ms_per_object": one.cpu_ms_per_object,
            "cpu_ms_per_object_and_follower": one.cpu_ms_per_follower(fewer),
        }
        for fewer, one in zip((None, *carried), carried, strict=False)
    ]


_COLUMNS = (
    ">brokers", ">followers", ">obj/s", ">MB/s", ">linked", ">idle", ">cores", ">ms/obj", ">+follower", ">RSS MB",
    ">p50 ms", ">p99",
)  # fmt: skip


def _row(one: dict[str, float | None]) -> list[str]:
    of_follower = one["cpu_ms_per_object_and_follower"]
    return [
        f"{one['brokers']}",
        f"{one['followers']}",
        f"{one['objects_per_s']:.1f}",
        f"{one['mb_per_s']:.1f}",
        f"{one['linked_share']:.1%}",
        f"{one['idle_cores']:.3f}",
        f"{one['cores']:.3f}",
        f"{one['cpu_ms_per_object']:.1f}",
        "" if of_follower is None else f"{of_follower:.2f}",
        f"{one['memory_mb']:.0f}",
        f"{one['late_p50_ms']:.0f}",
        f"{one['late_p99_ms']:.0f}",
    ]

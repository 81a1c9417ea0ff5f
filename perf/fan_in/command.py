"""What the follower's side of one agent takes among so many leaders; see `perf.fan_in.world` for what is real."""

from dataclasses import asdict
from typing import Annotated

import typer

from cli.connection import Json
from cli.tables import show, table, tell_json
from perf.fan_in.world import Shape, measure


def fan_in(
    brokers: Annotated[list[int] | None, typer.Option(min=3, help="So many; 3, 10 and 30 unless given.")] = None,
    objects_per_s: Annotated[float, typer.Option(min=0.1, help="Of each leader.")] = 10,
    mb_per_s: Annotated[float, typer.Option(min=0.01, help="Produced to each leader.")] = 5,
    partitions: Annotated[int, typer.Option(min=1, help="Of each leader, all of them in each object.")] = 120,
    seconds: Annotated[float, typer.Option(min=1, help="Measured of each number of brokers.")] = 10,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds before that.")] = 3,
    shared: Annotated[
        bool, typer.Option("--shared", help="A neighbour reads all, and gives what it is asked for.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure the CPU of an agent's follower's side for each object that it reads, among so many brokers."""
    shape = Shape(objects_per_s, mb_per_s, partitions, warm_up, seconds, shared)
    found = measure(sorted(set(brokers or (3, 10, 30))), shape)
    if json:
        followed = [{**asdict(one), "cpu_ms_per_object": one.cpu_ms_per_object} for one in found]
        tell_json({"shape": asdict(shape), "followed": followed})
        return
    rows = [
        [
            f"{one.brokers}", f"{one.leaders}", f"{one.ranges}", f"{one.objects_per_s:.0f}", f"{one.mb_per_s:.1f}",
            f"{one.asked_per_object:.1f}", f"{one.cores:.3f}", f"{one.cpu_ms_per_object:.2f}",
            f"{one.late_p50_ms:.0f}", f"{one.late_p99_ms:.0f}",
        ]
        for one in found
    ]  # fmt: skip
    columns = (">brokers", ">leaders", ">ranges", ">obj/s", ">MB/s", ">asked", ">cores", ">ms/obj", ">p50 ms", ">p99")
    show(table(*columns, rows=rows, title="The follower's side", without_lines=True))

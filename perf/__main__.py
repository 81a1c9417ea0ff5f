"""`python -m perf`: the ladder of benchmarks, paired with stock Kafka in one run."""

import sys

from cli.command_group import command_group
from local_cluster.child_processes import ends_what_it_started
from local_cluster.object_store.native import NativeStoreMissingError
from perf.acks import acks
from perf.catchup import catchup
from perf.cost.command import cost
from perf.counts.command import counts
from perf.fan_in.command import fan_in
from perf.fan_out.command import fan_out
from perf.gateway.command import gateway
from perf.idle import idle
from perf.ladder.command import ladder
from perf.ladder.price import price
from perf.ladder.rates import rates
from perf.ladder.versions import versions
from perf.metadata.command import metadata
from perf.metadata.expiration import expiration
from perf.reassign import reassign
from perf.rebuild import rebuild
from perf.restart.command import restart
from perf.s3 import s3
from perf.zones import zones
from tests.retention_job.recorded.measurement import report
from tests.soak.command import soak

app = command_group(__doc__)
for command in (
    ladder,
    versions,
    acks,
    cost,
    counts,
    price,
    rates,
    catchup,
    gateway,
    idle,
    metadata,
    report,
    reassign,
    rebuild,
    expiration,
    restart,
    s3,
    soak,
    zones,
):
    app.command()(command)
app.command("fan-in")(fan_in)
app.command("fan-out")(fan_out)

if __name__ == "__main__":
    try:
        with ends_what_it_started():
            app()
    except NativeStoreMissingError as error:
        sys.exit(str(error))

"""`python -m perf`: the ladder of benchmarks, paired with stock Kafka in one run."""

import sys

from cli.option_groups import command_group
from local_cluster.object_store.native import GoProgramMissingError
from local_cluster.polling import WaitTimeoutError
from local_cluster.processes import ProcessStartError, ends_what_it_started
from perf.cost.sweep import cost
from perf.counts.command import counts
from perf.defaults import defaults
from perf.ladder.command import ladder
from perf.spark import spark
from tests.soak.command import soak

app = command_group(__doc__)
for command in (ladder, cost, counts, defaults, spark, soak):
    app.command()(command)

if __name__ == "__main__":
    try:
        with ends_what_it_started():
            app()
    except (GoProgramMissingError, ProcessStartError, WaitTimeoutError) as error:
        sys.exit(str(error))

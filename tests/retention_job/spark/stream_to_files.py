"""A program that writes what a stream gives to files, until all is read: `python -m ... OPTIONS OUT CHECKPOINT`."""

import json
import sys

import remote_wal
from retention_job.spark.session import spark_session


def main(options: str, out: str, checkpoint: str) -> None:
    spark = spark_session("local[2]", memory="512m")
    spark.dataSource.register(remote_wal.RemoteWalDataSource)
    stream = spark.readStream.format("remote_wal").options(**json.loads(options)).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start(out).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

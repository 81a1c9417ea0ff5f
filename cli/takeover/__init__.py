"""`remote-wal takeover`: the place of a dead broker is taken on another host, until its partitions are elsewhere.

- `host_properties`: the server.properties of the place, and what is missing on this host
- `steps`: which steps are done
- `place`: does them, by the other commands, Kafka's own start script and an agent
- `takeover`: the command
"""

# For the chart's job that takes a dead broker's place: the agent's image, with Kafka and a Java runtime.
#   docker build -f dist/takeover.Dockerfile -t remote-wal-takeover:0.1.0 dist
FROM apache/kafka:4.4.0 AS kafka


FROM remote-wal:0.1.0

USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=kafka /opt/kafka /opt/kafka
USER 10001:10001

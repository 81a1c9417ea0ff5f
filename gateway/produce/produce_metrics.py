"""Counts Produce requests through object storage, at either side.

`way` is `linked`, `inline`, or `original`: linked, and then requested inline. At the broker's side `reason` says why it
was requested.
"""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.client_traffic import ClientTraffic, RouterTraffic


class ProduceMetrics:
    """Counters of Produce requests through object storage, at the gateway and at the leader's agent."""

    def __init__(self, registry: CollectorRegistry, traffic: ClientTraffic | None = None) -> None:
        counter = partial(Counter, registry=registry)
        self.router: RouterTraffic = (traffic or ClientTraffic()).router
        self.requests = counter(
            "remote_wal_gateway_produce_requests",
            "Clients' frames that went to a broker's agent, by the way they went",
            ["way"],
        )
        self.linked_bytes = counter(
            "remote_wal_gateway_produce_linked_bytes", "Record bytes of clients' requests that did not cross zones"
        )
        self.asked = counter(
            "remote_wal_gateway_produce_asked_inline",
            "Requests that the agent beside the broker had to ask the gateway for as they were",
            ["reason"],
        )
        self.objects = counter(
            "remote_wal_gateway_router_objects", "Objects of the RouterChannel by what became of them", ["outcome"]
        )
        self.live_objects = Gauge(
            "remote_wal_gateway_router_live_objects",
            "Objects of this gateway that are uploaded, stored, or to be deleted",
            registry=registry,
        )

"""A cluster whose clients stay in their zones: the listeners and keys that `gateway.plan` makes, on this machine.

Broker b is in the n-th zone; besides its other addresses (`local_cluster.layout`) there are

- <network>.n.b: its listener for clients of its own zone
- <network>.n.(100 + b): its agent, as the gateway of the zone

It has only the plan's listeners for clients: agents, tests and tools, which are no clients of a zone, use the listener
for agents, at the address that other clusters have for all clients. Agents get only the settings of the plan.

The network has loopback addresses by default. With addresses and network namespaces of another network, a client that
can reach only its own zone's addresses proves that it needs no others.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.plan import plan
from gateway.planned_ports import BrokerSite, PlanRules
from local_cluster.layout import REPLICA_DOMAIN, ClusterLayout

_GATEWAY_HOSTS = 100
CLIENTS = "CLIENT"
"""The listener that the plan's listeners replace."""
_TIER_LISTENER = "remote.log.metadata.manager.listener.name"
_JOINED = ("listeners", "advertised.listeners", "listener.security.protocol.map")


@dataclass(frozen=True, slots=True)
class ZoneGateways:
    """The zone of each broker, and the network's first two numbers."""

    zones: Mapping[int, str]
    network: str = "127.10"
    is_named: bool = False
    """Whether brokers advertise gateways by names that stand for all of a zone's, which clients' hosts must know."""
    admin: bool = False
    """Whether admin tools may connect through each broker's agent."""
    bootstrap: bool = False
    """Whether each agent has a bootstrap port for clients of all zones."""
    durable: bool = False
    """Whether clients of a broker's own zone connect through its agent, too, at its gateway's address."""
    pipelined: bool = False
    """With `durable`: whether acks=all is forwarded as acks=1 while agents hold the answers."""
    security_protocol: str = "PLAINTEXT"
    """The protocol of the zones' clients, and of admin tools."""

    @property
    def zone_names(self) -> list[str]:
        """Zone names in the order of their numbers, which count from 1."""
        return sorted(set(self.zones.values()))

    def subnet(self, zone: str) -> str:
        """Return the first three numbers of the zone's addresses."""
        return f"{self.network}.{self.zone_names.index(zone) + 1}"

    def broker_host(self, broker_id: int) -> str:
        """Return the address where clients of its own zone reach a broker."""
        return f"{self.subnet(self.zones[broker_id])}.{broker_id}"

    def gateway_host(self, broker_id: int) -> str:
        """Return the address where clients of its own zone reach the broker's agent."""
        return f"{self.subnet(self.zones[broker_id])}.{_GATEWAY_HOSTS + broker_id}"

    def gateway_hosts(self, zone: str) -> list[str]:
        """Return the addresses of all agents of a zone."""
        return [self.gateway_host(broker_id) for broker_id, its in self.zones.items() if its == zone]

    def gateway_name(self, zone: str) -> str:
        """Return the host that brokers of other zones advertise for the zone's gateways."""
        return f"gateway-{zone}.{REPLICA_DOMAIN}" if self.is_named else self.gateway_hosts(zone)[0]

    def hosts_file(self, zone: str) -> str:
        """Return the names that a client of the zone needs."""
        lines = [f"{host} {self.gateway_name(zone)}" for host in self.gateway_hosts(zone)]
        return "\n".join(["127.0.0.1 localhost", *lines]) + "\n"

    def addresses(self, zone: str) -> list[str]:
        """Return all addresses that the zone's brokers and agents listen at."""
        brokers = [broker_id for broker_id, its in self.zones.items() if its == zone]
        return [*map(self.broker_host, brokers), *map(self.gateway_host, brokers)]

    def own_zone_address(self, layout: ClusterLayout, broker_id: int) -> str:
        """Return the address where clients of its own zone, and admin tools, reach a broker through its agent."""
        return f"{self.gateway_host(broker_id)}:{layout.replica_port(broker_id)}"

    def bootstrap_address(self, layout: ClusterLayout, broker_id: int) -> str:
        """Return the address where clients of any zone may bootstrap at a broker's agent."""
        return f"{self.gateway_host(broker_id)}:{layout.replica_port_base}"

    def bootstrap_servers(self, layout: ClusterLayout, zone: str) -> str:
        """Return the bootstrap servers of the zone's gateways only, at their ports for brokers of other zones."""
        others = [broker_id for broker_id, its in self.zones.items() if its != zone]
        return ",".join(f"{self.gateway_name(zone)}:{layout.replica_port(broker_id)}" for broker_id in others)


def with_gateways(
    properties: Mapping[str, str], layout: ClusterLayout, broker_id: int, gateways: ZoneGateways
) -> dict[str, str]:
    """Return a broker's keys joined with the planned ones."""
    sites = [
        BrokerSite(
            one,
            gateways.zones[one],
            gateways.gateway_host(one) if gateways.durable else gateways.broker_host(one),
            layout.replica_port(one) if gateways.durable else _port_of_own_zone(layout, one, gateways),
            bind_host=gateways.broker_host(one),
            gateway_bind_host=gateways.gateway_host(one),
            admin_host=gateways.gateway_host(one),
            agents_host=layout.host(one),
            agents_port=layout.client_port(one),
            agents_bind_host=layout.host(one),
        )
        for one in layout.broker_ids
    ]
    rules = PlanRules(
        gateway_port_base=layout.replica_port_base,  # free on all addresses
        loopback_port_base=layout.zone_port_base,
        loopback_port_step=layout.broker_count,
        admin_port_base=layout.zone_port_base + len(gateways.zone_names) * layout.broker_count,
        replica_port_base=layout.replica_port_base,
        replica_listen_host=layout.agent_replica_host(broker_id),
        agents_security_protocol="PLAINTEXT",
        admin=gateways.admin,
        durable=gateways.durable,
        pipelined=gateways.pipelined,
        bootstrap_port=layout.replica_port_base if gateways.bootstrap else None,
        security_protocol=gateways.security_protocol,
    )
    names = {zone: gateways.gateway_name(zone) for zone in gateways.zone_names}
    planned = plan(sites, names, rules)[broker_id]
    kept = {key: ",".join(_without_clients(properties[key])) for key in _JOINED}
    joined = {key: f"{planned[key]},{kept[key]}" for key in _JOINED}
    if properties.get(_TIER_LISTENER) == CLIENTS:
        joined[_TIER_LISTENER] = planned["remote.wal.agent.client.listener"]
    return {**properties, **planned, **joined}


def _without_clients(listeners: str) -> list[str]:
    return [one for one in listeners.split(",") if not one.startswith(f"{CLIENTS}:")]


def _port_of_own_zone(layout: ClusterLayout, broker_id: int, gateways: ZoneGateways) -> int:
    """Return the port that the plan's rule leaves out. Kafka wants another port for each listener at any address."""
    index = gateways.zone_names.index(gateways.zones[broker_id])
    return layout.zone_port_base + index * layout.broker_count + broker_id

"""`remote-wal gateway`: the listeners by which clients stay in their zone."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.command_group import command_group
from cli.connection import CommandConfig, Connection, Json
from cli.option_groups import grouped
from cli.tables import tell_json
from gateway.plan import PlanError, PlanRules

if TYPE_CHECKING:
    from gateway.plan import BrokerSite

app = command_group("Let clients reach brokers of other zones by their own zone's gateway.")

_TIMEOUT_S = 15.0
_DEFAULTS = PlanRules()


@app.callback()
def gateway() -> None:
    """Let clients reach brokers of other zones by their own zone's gateway."""


@dataclass(frozen=True, slots=True)
class Sites:
    """Where brokers and zones are told: in a file, or by the cluster."""

    sites: Annotated[
        Path | None,
        typer.Option(help="Zones and brokers, in TOML.", exists=True, dir_okay=False),
    ] = None
    bootstrap_server: Annotated[
        str, typer.Option("--bootstrap-server", help="Or a cluster, whose brokers and racks are taken.")
    ] = ""
    command_config: CommandConfig = None
    gateway_name: Annotated[
        str, typer.Option(help="With a cluster: the name of each zone's gateway, in which {zone} stands for the zone.")
    ] = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """How ports and names are made."""

    security_protocol: Annotated[
        str, typer.Option(help="What clients speak: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.")
    ] = _DEFAULTS.security_protocol
    gateway_port_base: Annotated[
        int, typer.Option(help="A gateway's port for a broker is this plus the broker's id.")
    ] = _DEFAULTS.gateway_port_base
    loopback_port_base: Annotated[
        int, typer.Option(help="A broker's loopback port for the first zone is this plus its id.")
    ] = _DEFAULTS.loopback_port_base
    loopback_port_step: Annotated[int, typer.Option(help="By so much the base of the next zone is higher.")] = (
        _DEFAULTS.loopback_port_step
    )
    listener_prefix: Annotated[str, typer.Option(help="A listener's name is this, and the zone.")] = (
        _DEFAULTS.listener_prefix
    )
    admin: Annotated[
        bool,
        typer.Option("--admin", help="With a listener by which Kafka's admin tools may set remote.wal.* of topics."),
    ] = False
    durable: Annotated[
        bool,
        typer.Option(
            "--durable",
            help="Clients of a broker's own zone come by its agent, as topics with remote.wal.durable.enable need.",
        ),
    ] = False
    bootstrap_port: Annotated[
        int | None,
        typer.Option(help="With a port at each agent by which clients of all zones may be told one address.", min=1),
    ] = None


@app.command()
@grouped
def plan(sites: Sites, rules: Rules, json: Json = False) -> None:
    """Print the lines that each broker's server.properties needs; nothing is changed."""
    from dataclasses import asdict

    from gateway.plan import plan as plan_of

    brokers, gateways = _sites(sites)
    made = plan_of(brokers, gateways, PlanRules(**asdict(rules)))
    if json:
        tell_json({str(broker_id): keys for broker_id, keys in made.items()})
        return
    for broker_id, keys in made.items():
        typer.echo(f"# broker {broker_id}: join the first three to the listeners for brokers and controllers")
        for key, value in keys.items():
            typer.echo(f"{key}={value}")
        if rules.security_protocol.endswith("SSL"):
            typer.echo("# TLS for clients ends at the gateway: its certificate must name the zone's gateway")
            typer.echo("#remote.wal.gateway.ssl.certificate.file=")
            typer.echo("#remote.wal.gateway.ssl.key.file=")
        typer.echo("")


def _sites(sites: Sites) -> "tuple[list[BrokerSite], dict[str, str]]":
    if (sites.sites is None) == (not sites.bootstrap_server):
        raise PlanError("zones and brokers are told by either --sites or --bootstrap-server")
    if sites.sites is not None:
        from gateway.plan_file import read_sites

        return read_sites(sites.sites)
    if "{zone}" not in sites.gateway_name:
        raise PlanError("with --bootstrap-server, --gateway-name is needed, such as kafka-gateway.{zone}.example.com")
    brokers = _brokers_of(sites)
    return brokers, {zone: sites.gateway_name.replace("{zone}", zone) for zone in sorted({one.zone for one in brokers})}


def _brokers_of(sites: Sites) -> "list[BrokerSite]":
    from gateway.plan import BrokerSite
    from metadata_topic.topic.cluster_descriptions import ClusterDescriptions

    config = Connection(sites.bootstrap_server, sites.command_config).client_config()
    brokers = ClusterDescriptions(config, "remote-wal-gateway-plan", _TIMEOUT_S).brokers()
    return [
        BrokerSite(one.broker_id, one.rack or "", one.host, one.port)
        for one in sorted(brokers, key=lambda one: one.broker_id)
    ]

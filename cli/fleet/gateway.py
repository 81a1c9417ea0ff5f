"""`remote-wal gateway`: the listeners through which clients stay in their zone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import BootstrapServer, BrokerConfig, CommandConfig, Connection, Json, SecurityProtocol
from cli.option_groups import command_group, grouped
from cli.tables import tell_json
from gateway.planning.planned_ports import PlanError, PlanRules

if TYPE_CHECKING:
    from gateway.planning.plan import RunningPlan
    from kafka_cluster.responses import DescribedBroker
    from kafka_log.broker_files.server_properties import BrokerProperties

app = command_group("Let clients reach brokers of other zones by their own zone's gateway.")

_TIMEOUT_S = 15.0
_DEFAULTS = PlanRules()
_FIRST_ROUND = """\
# first round: brokers get a listener for agents. One host at a time: replace these lines, restart agent and broker.
# Finish it on all brokers before the second: then agents read Kafka by this listener, do not see brokers without it,
# and wait"""
_CLIENTS_ROUND = """\
: clients come by agents. One host at a time: stop agent and broker, replace these lines, start the agent,
# then the broker. An agent that starts while the broker runs with its old lines finds its port taken, and ends"""
_WAY_BACK = """\
# Back, one host at a time: stop the standby (it would take the broker's port), agent and broker. Put `listeners` back
# as it was before clients came by agents; `listener.security.protocol.map`, too, if it was replaced then. Take the
# remote.wal.gateway.* lines out; the other lines may stay. Start the agent, then the broker. Do so on all brokers
# before you set inter.broker.listener.name back to clients' listener: agents with these lines refuse to start then"""


@dataclass(frozen=True, slots=True)
class Sites:
    """The options that name the cluster, whose brokers and racks the plan uses, and its gateways."""

    bootstrap_server: BootstrapServer
    command_config: CommandConfig = None
    gateway_name: Annotated[
        str, typer.Option(help="The name of each zone's gateway, in which {zone} stands for the zone.")
    ] = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The options for ports and names of a plan."""

    security_protocol: Annotated[SecurityProtocol, typer.Option(help="What clients speak.")] = "PLAINTEXT"
    agents_security_protocol: Annotated[
        SecurityProtocol | None, typer.Option(help="What agents speak with brokers; by default as clients.")
    ] = None
    agents_listener: Annotated[
        str,
        typer.Option(help="The listener for agents: one that brokers have already, or by default a new one."),
    ] = _DEFAULTS.agents_listener
    agents_port: Annotated[
        int,
        typer.Option(help="A broker's port for agents; with --front, of brokers that share a host, this plus its id."),
    ] = _DEFAULTS.agents_port
    zone_port: Annotated[
        int,
        typer.Option(help="A broker's port for clients of its own zone, where a cluster has no plan yet."),
    ] = _DEFAULTS.zone_port
    gateway_port_base: Annotated[
        int, typer.Option(help="A gateway's port for a broker is this plus the broker's id.")
    ] = _DEFAULTS.gateway_port_base
    loopback_port_base: Annotated[
        int, typer.Option(help="A broker's loopback port for the first zone is this plus its id.")
    ] = _DEFAULTS.loopback_port_base
    loopback_port_step: Annotated[int, typer.Option(help="By so much the base of the next zone is higher.")] = (
        _DEFAULTS.loopback_port_step
    )
    replica_port_base: Annotated[
        int, typer.Option(help="remote.wal.agent.replica.port.base, whose ports are taken by brokers and agents.")
    ] = _DEFAULTS.replica_port_base
    listener_prefix: Annotated[str, typer.Option(help="A listener's name is this, and the zone.")] = (
        _DEFAULTS.listener_prefix
    )
    durable: Annotated[
        bool,
        typer.Option(
            "--durable",
            help="Clients of a broker's own zone come by its agent, as topics with remote.wal.durable.enable need.",
        ),
    ] = False
    pipelined: Annotated[
        bool,
        typer.Option(
            "--pipelined",
            help="With --durable: brokers get acks=all as acks=1, and agents hold the answers until it is replicated.",
        ),
    ] = False
    bootstrap: Annotated[
        bool,
        typer.Option(
            "--bootstrap",
            help="With a port at each agent by which clients of all zones may be told one address: the one below the "
            "gateways' base.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class Front:
    """The options for an agent in front of each broker, without zones."""

    front: Annotated[
        bool,
        typer.Option(
            "--front",
            help="Instead: all clients come by their leader's agent, at the addresses that they know, so that acks=all "
            "is held and linked. Needs --bootstrap-server alone.",
        ),
    ] = False
    listener: Annotated[
        str, typer.Option(help="With --front: clients' listener; by default the one of --bootstrap-server.")
    ] = ""


@app.command()
@grouped
def plan(sites: Sites, rules: Rules, front: Front, json: Json = False) -> None:
    """Print the lines that each broker's server.properties needs; nothing is changed."""
    from dataclasses import asdict

    if front.front:
        _print_front(sites, rules, front.listener, as_json=json)
        return

    from gateway.planning.plan import plan as plan_of
    from gateway.planning.plan import proxies

    found, gateways = _running(
        sites, PlanRules(**{key: value for key, value in asdict(rules).items() if value is not None})
    )
    made = found.whole(plan_of(found.brokers, gateways, found.rules, found.loopback_bases))
    if json:
        tell_json({"brokers": {str(broker_id): keys for broker_id, keys in made.items()}})
        return
    for broker_id, keys in made.items():
        typer.echo(f"# broker {broker_id}: replace these")
        for key, value in keys.items():
            typer.echo(f"{key}={value}")
        if rules.security_protocol.endswith("SSL"):
            typer.echo("# TLS for clients ends at the gateway: its certificate must name the zone's gateway")
            typer.echo("#remote.wal.gateway.ssl.certificate.file=")
            typer.echo("#remote.wal.gateway.ssl.key.file=")
        if rules.pipelined:
            typer.echo(
                "# while this agent is dead, clients of its zone reach the broker by `remote-wal gateway standby`"
            )
        typer.echo("")
    for zone, brokers in proxies(found.brokers).items():
        agents = ", ".join(str(one.broker_id) for one in found.brokers if one.zone == zone)
        typer.echo(f"# DNS: {gateways[zone]} has the addresses of the agents in {zone}, beside brokers {agents}")
        for broker_id, order in brokers.items():
            port = found.rules.gateway_port_base + broker_id
            first, *others = map(str, order)
            then = f", then {', '.join(others)}" if others else ""
            typer.echo(f"# {gateways[zone]}:{port} leads to broker {broker_id} by the agent beside {first}{then}")


@app.command()
def standby(broker_config: BrokerConfig) -> None:
    """Lead clients of the broker's own zone to the broker while its agent is dead. Runs until SIGTERM.

    For where clients of the own zone come by the agent (`gateway plan --durable`) and no topic is durable.
    """
    import asyncio

    from agent.configuration import Configuration
    from agent.settings_file import read_settings_file
    from agent.wiring.standby import stand_by_for
    from cli.agent_start import log_to_stderr

    log_to_stderr(console=False)
    asyncio.run(stand_by_for(Configuration.load(*read_settings_file(broker_config)), broker_config))


def _running(sites: Sites, rules: PlanRules) -> "tuple[RunningPlan, dict[str, str]]":
    """Return the brokers and listeners that exist, and the names of the zones' gateways."""
    from gateway.planning.plan import running_plan
    from gateway.planning.planned_ports import BrokerSite

    if "{zone}" not in sites.gateway_name:
        raise PlanError("--gateway-name is needed, such as kafka-gateway.{zone}.example.com")
    brokers, properties = _asked(sites)
    told = {one.broker_id: BrokerSite(one.broker_id, one.rack or "", one.host, one.port) for one in brokers}
    found = running_plan(told, properties, rules)
    zones = sorted({one.zone for one in found.brokers})
    return found, {zone: sites.gateway_name.replace("{zone}", zone) for zone in zones}


def _asked(sites: Sites) -> "tuple[list[DescribedBroker], dict[int, BrokerProperties]]":
    """Return what the asked listener says of each broker, and what brokers say. Raises PlanError."""
    from doctor.cluster_questions import ask_properties
    from doctor.facts import Unknown
    from kafka_cluster.cluster import KafkaCluster
    from kafka_cluster.errors import KafkaClusterError

    config = Connection(sites.bootstrap_server, sites.command_config).client_config()
    brokers = KafkaCluster(config, "remote-wal-gateway-plan", _TIMEOUT_S).brokers()
    properties = {}
    for broker_id, told in ask_properties(config, [one.broker_id for one in brokers], _TIMEOUT_S).items():
        if isinstance(told, Unknown):
            raise KafkaClusterError(
                "plan",
                f"broker {broker_id}",
                f"it does not tell its listeners, without which a gateway's address may be taken for "
                f"its own: {told.reason}. Log in as who may DescribeConfigs of the cluster",
            )
        properties[broker_id] = told
    return brokers, properties


def _print_front(sites: Sites, rules: Rules, listener: str, *, as_json: bool) -> None:
    from gateway.planning.front import FrontRules, front_plans
    from kafka_log.broker_files.server_properties import Endpoint

    brokers, properties = _asked(sites)
    asked = {one.broker_id: Endpoint(one.host, one.port) for one in brokers}
    agents = {"agents_listener": rules.agents_listener} if rules.agents_listener else {}
    planned = front_plans(
        asked,
        properties,
        FrontRules(listener, **agents, agents_port=rules.agents_port, loopback_port_base=rules.loopback_port_base),
    )
    if as_json:
        found = {str(broker_id): {"first": one.first, "then": one.then} for broker_id, one in planned.items()}
        tell_json({"brokers": found})
        return
    first = {key: one.first for key, one in planned.items()}
    then = {key: one.then for key, one in planned.items()}
    rounds = [(_FIRST_ROUND, first), (f"# second round{_CLIENTS_ROUND}", then)]
    if not any(first.values()):
        rounds = [(f"# one round{_CLIENTS_ROUND}", then)]
    if not any(then.values()):
        typer.echo("# all clients come by agents already: nothing to change\n")
        rounds = []
    for head, lines in rounds:
        typer.echo(f"{head}\n")
        for broker_id, keys in lines.items():
            typer.echo(f"# broker {broker_id}" + ("" if keys else ": nothing to change"))
            for key, value in keys.items():
                typer.echo(f"{key}={value}")
            if keys and lines is then and "remote.wal.gateway.plaintext.accepted" not in keys:
                typer.echo("# clients' TLS ends at the agent: its certificate must name the address that they dial")
                typer.echo("#remote.wal.gateway.ssl.certificate.file=")
                typer.echo("#remote.wal.gateway.ssl.key.file=")
            typer.echo("")
    typer.echo("# Beside each agent: `remote-wal gateway standby` leads clients to the broker while the agent is dead")
    typer.echo(_WAY_BACK)

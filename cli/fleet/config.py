"""`remote-wal config`: checks and proposes the agent's lines in server.properties without asking brokers or stores."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import BrokerConfig, Json
from cli.exit_code import ExitCode
from cli.option_groups import command_group
from cli.tables import fail, show, tell_json

if TYPE_CHECKING:
    from agent.settings.agent_settings import AgentSettings
    from kafka_log.broker_files.server_properties import BrokerProperties

app = command_group(
    "Judge, or propose, the agent's lines in the broker's server.properties. No broker and no store is asked."
)

_HOST = "<this host's address>"
_STORE = {
    "remote.log.wal.storage.system.enable": "true",
    "remote.log.wal.storage.manager.class.name": "plugin.s3_express.S3ExpressWalStorageManager",
}
_SHADOW = {"remote.wal.agent.mode": "shadow"}


@app.command()
def check(broker_config: BrokerConfig, json: Json = False) -> None:
    """Name every key that is wrong, or show those that are set and what is to be looked at. `doctor` asks others, too.

    The agent's clients of Kafka and of the store are made for it, and say what is wrong in their settings.

    Exits with 0 if an agent would start with the file and nothing was found, with 1 if not.
    """
    from agent.settings.setting_types import AgentSettingsError
    from agent.settings.shown_configuration import shown_configuration
    from agent.settings_file import read_settings_file
    from doctor.file_checks import judge_file
    from kafka_log.errors import BrokerPropertiesError

    try:
        broker, settings = read_settings_file(broker_config)
        advice = [f"{found}; change: {change}" for _, found, change in judge_file(broker, settings)]
        refused = _refused(broker, settings, advice)
    except (AgentSettingsError, BrokerPropertiesError) as error:
        fail(error, ExitCode.FINDINGS, json=json)
    if refused is not None:
        fail("\n".join(filter(None, [refused, *advice])), ExitCode.FINDINGS, json=json)
    told = shown_configuration(broker, settings)
    code = ExitCode.FINDINGS if advice else ExitCode.GOOD
    if json:
        tell_json({**told, "advice": advice}, code)
    else:
        for key in told["set"]:
            value = told["settings"][key]
            typer.echo(f"{key}={str(value).lower() if isinstance(value, bool) else value}")
        for line in advice:
            show(f"To be looked at: {line}")
        if not advice:
            typer.echo("An agent can start with this file. All keys: docs/configuration.md.")
    raise typer.Exit(code)


def _refused(broker: "BrokerProperties", settings: "AgentSettings", advice: list[str]) -> str | None:
    """Return why an agent could not use a file that the settings name; empty: the advice names the file.

    Raises AgentSettingsError.
    """
    from agent.configuration import Configuration
    from kafka_cluster.errors import ClientPropertyError
    from plugin.prices import PriceError

    try:
        Configuration.load(broker, settings)
    except ClientPropertyError as error:
        if isinstance(error.__cause__, OSError):
            return ""
        return f"remote.wal.agent.client.config: {error}"
    except (OSError, PriceError) as error:
        named = getattr(error, "filename", None)
        return "" if named is not None and any(str(named) in one for one in advice) else str(error)
    return None


@app.command()
def init(
    broker_config: BrokerConfig,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Only the lines for an agent that nobody replicates through.")
    ] = False,
) -> None:
    """Print the lines to add to this file, with what only you know in angle brackets."""
    from kafka_log.broker_files.server_properties import load_broker_properties

    broker = load_broker_properties(broker_config)
    proposed = _STORE | _SHADOW if shadow else _proposed(broker, broker_config.absolute().parent)
    for key, value in (proposed | _bootstrap_servers(broker)).items():
        if key not in broker.raw:
            typer.echo(f"{key}={value}")


def _bootstrap_servers(broker: "BrokerProperties") -> dict[str, str]:
    """Return where to ask Kafka if the file's listeners do not tell, as in Kafka's own, which advertises localhost."""
    from agent.settings.kafka_client import bootstrap_listener
    from agent.settings.process_settings import ClientSettings
    from agent.settings.setting_types import AgentSettingsError
    from replication.wire.peer_connection import Address

    try:
        bootstrap_listener(broker, ClientSettings())
    except AgentSettingsError:
        if shared := broker.listeners.get(broker.inter_broker_listener_name):
            return {"remote.wal.agent.bootstrap.servers": str(Address(shared.host or "127.0.0.1", shared.port))}
    return {}


def _proposed(broker: "BrokerProperties", directory: Path) -> dict[str, str]:
    """Return the minimum that an agent needs in a cluster over several hosts."""
    keys = _STORE | {
        "rsm.wal.config.bucket": f"<a directory bucket in {broker.rack or 'the zone of this broker'}>",
        "remote.wal.agent.peer.listener": f"{_HOST}:19090",
        "remote.wal.agent.peers": f"{broker.node_id}@{_HOST}:19090,<the others alike>",
    }
    for name in ("certificate", "key", "ca"):
        keys[f"remote.wal.agent.ssl.{name}.file"] = str(directory / f"remote-wal-{name}.pem")
    return keys

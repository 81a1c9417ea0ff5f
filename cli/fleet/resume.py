"""`remote-wal resume`: ends a pause of `remote-wal pause`."""

from contextlib import closing
from dataclasses import asdict

import typer

from cli.connection import Json
from cli.exit_code import ExitCode
from cli.fleet.pause import PauseScope, check_scope
from cli.option_groups import grouped
from cli.tables import tell_json


@grouped
def resume(scope: PauseScope, json: Json = False) -> None:
    """End a pause: links are used again within 5 s. Ends only the pause of the same scope, and shows what is left.

    Exits with 1 if another pause still holds some of these links back, else 0.
    """
    from agent.link_pauses import remove_local
    from metadata_topic.settings.settings_records import ALL, LOCAL, Pause, links_of
    from metadata_topic.settings.settings_table import PAUSES
    from metadata_topic.settings.settings_topic import SettingsWriter, read_known_settings

    name, left = scope.name, dict[str, Pause]()
    if name == LOCAL:
        was_paused = remove_local(scope.state_directory())
    else:
        client = scope.client_config()
        known = read_known_settings(client)
        left = dict(known.pauses)
        if was_paused := left.pop(name, None) is not None:
            with closing(SettingsWriter(client)) as writer:
                writer.put(PAUSES, {name: None})
        else:
            check_scope(scope, client, known.topics.keys(), known.agents.keys())
    code = ExitCode.FINDINGS if ALL in left or (left and name == ALL) else ExitCode.GOOD
    if json:
        paused = {scope_left: asdict(pause) for scope_left, pause in sorted(left.items())}
        tell_json({"scope": name, "was_paused": was_paused, "still_paused": paused}, code)
        raise typer.Exit(code)
    typer.echo(f"{links_of(name)}: {'resumed' if was_paused else 'there was no such pause'}")
    for scope_left, pause in sorted(left.items()):
        typer.echo(f"still paused: {pause.describe(scope_left)}")
    raise typer.Exit(code)

"""`remote-wal resume`: ends a pause of `remote-wal pause`."""

from contextlib import closing

import typer

from cli.fleet.pause import PauseScope
from cli.option_groups import grouped


@grouped
def resume(scope: PauseScope) -> None:
    """End a pause: links are used again within 5 s. Ends only the pause of the same scope, and shows what is left."""
    from agent.link_pauses import remove_local
    from metadata_topic.settings.settings_records import LOCAL
    from metadata_topic.settings.settings_topic import SettingsWriter, read_known_settings

    name = scope.name
    if name == LOCAL:
        was_paused, left = remove_local(scope.state_directory()), {}
    else:
        client = scope.client_config()
        left = dict(read_known_settings(client).pauses)
        if was_paused := left.pop(name, None) is not None:
            with closing(SettingsWriter(client)) as writer:
                writer.pause(name, None)
    typer.echo(f"{name}: {'resumed' if was_paused else 'was not paused'}")
    for scope_left, pause in sorted(left.items()):
        typer.echo(f"still paused: {pause.describe(scope_left)}")

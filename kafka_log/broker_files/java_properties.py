"""Reads properties files as Kafka does: Java's format, values trimmed, `${file:/path:key}` and its like resolved.

Kafka's ConfigDef trims nearly all values; plugins get theirs as they are, and no value of theirs that we know begins or
ends with white space. Values are resolved as Kafka's FileConfigProvider, DirectoryConfigProvider and
EnvVarConfigProvider do (KIP-297, KIP-421), by the names in `config.providers`. Kafka leaves unresolvable values
unchanged. Here they are an error, because such a text is useless as a password; but only when the value is used,
because only the broker may have the classes for its own values.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import javaproperties

_VARIABLE = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
"""Matches like Kafka's ConfigTransformer: provider, optional path, key."""
_PACKAGE = "org.apache.kafka.common.config.provider."
PROVIDERS_KEY = "config.providers"
_WHITE_SPACE = "".join(map(chr, range(0x21)))
"""What trim() removes in Java."""


def parse_properties(raw: bytes) -> dict[str, str]:
    """Parse a properties file's content, which is ISO-8859-1. Values are trimmed, not resolved. Raises ValueError."""
    return {key: value.strip(_WHITE_SPACE) for key, value in javaproperties.loads(raw).items()}


class ConfigProviderError(Exception):
    """A property names a config provider that is unknown here, or that lacks the value. `key` is the property's."""

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"{key}: {reason}")


class ResolvedProperties(Mapping[str, str]):
    """Properties whose values are trimmed, and whose references to config providers are resolved at each read.

    Reading a value that cannot be resolved raises ConfigProviderError. Its repr has no values.
    """

    def __init__(self, raw: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
        self._raw = {key: value.strip(_WHITE_SPACE) for key, value in raw.items()}
        self._environment = environment

    def __getitem__(self, key: str) -> str:
        value = self._raw[key]
        return _VARIABLE.sub(partial(self._resolved, key), value).strip(_WHITE_SPACE) if "${" in value else value

    def __contains__(self, key: object) -> bool:
        return key in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def __repr__(self) -> str:
        return f"ResolvedProperties({len(self._raw)} keys)"

    def _resolved(self, key: str, variable: "re.Match[str]") -> str:
        name, path, wanted = variable[1], variable[2] or "", variable[3]
        try:
            return self._looked_up(name, path, wanted)
        except (OSError, ValueError, re.error) as error:
            raise ConfigProviderError(key, f"${{{name}:...}}: {error}") from error

    def _looked_up(self, name: str, path: str, wanted: str) -> str:
        """Look a value up. Raises ValueError with the reason, OSError."""
        if name not in (one.strip() for one in self._raw.get(PROVIDERS_KEY, "").split(",")):
            raise ValueError(f"{PROVIDERS_KEY} names no provider {name!r}")
        kind = self._raw.get(f"{PROVIDERS_KEY}.{name}.class", "")
        parameter = partial(self._parameter, name)
        if kind == f"{_PACKAGE}EnvVarConfigProvider":
            return _of_environment(self._environment, path, wanted, parameter("allowlist.pattern"))
        if kind == f"{_PACKAGE}FileConfigProvider":
            return _of_file(_allowed(path, parameter("allowed.paths")), wanted)
        if kind == f"{_PACKAGE}DirectoryConfigProvider":
            return _of_directory(_allowed(path, parameter("allowed.paths")), wanted)
        raise ValueError(f"{kind or 'no class'} cannot be asked here; Kafka's own for files and environment can be")

    def _parameter(self, name: str, parameter: str) -> str:
        return self._raw.get(f"{PROVIDERS_KEY}.{name}.param.{parameter}", "")


def _of_environment(environment: Mapping[str, str], path: str, wanted: str, pattern: str) -> str:
    if path:
        raise ValueError("a path is not for the environment")
    if wanted not in environment or (pattern and not re.fullmatch(pattern, wanted)):
        raise ValueError(f"{wanted} is not set for this process, or not in allowlist.pattern")
    return environment[wanted]


def _of_file(path: Path, wanted: str) -> str:
    found: Mapping[str, str] = javaproperties.loads(path.read_text(encoding="utf-8"))
    if wanted not in found:
        raise ValueError(f"{path} has no key {wanted}")
    return found[wanted]


def _of_directory(path: Path, wanted: str) -> str:
    """Return the content of a file that has only this value, like a mounted secret."""
    file = path / wanted
    if not wanted or file.parent != path or not file.is_file():
        raise ValueError(f"{path} has no file {wanted}")
    return file.read_text(encoding="utf-8")


def _allowed(path: str, allowed: str) -> Path:
    if not path:
        raise ValueError("a path is missing")
    normal = Path(os.path.normpath(path))
    roots = [Path(os.path.normpath(one.strip())) for one in allowed.split(",") if one.strip()]
    if roots and not any(normal.is_relative_to(root) for root in roots):
        raise ValueError(f"{normal} is not in allowed.paths")
    return normal

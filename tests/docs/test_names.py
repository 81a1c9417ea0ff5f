"""What stands in backticks is there: in the documents, and in the docstrings and comments of the code.

A word in backticks is taken for a name by its form: an option, a path with a known ending, or a word with a dot, an
underscore, a hyphen or a capital letter. It must be an identifier or a whole string of the code, a file, a word of its
TOML, a key or metric of the generated documents, or put together from a string like `link_defect_` and another.
Commands are held against the command line itself.
"""

import re
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.command_lines import is_command

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PACKAGES = [init.parent for init in ROOT.glob("*/__init__.py") if init.parent.name != "tests"]
INSTRUMENTS = [ROOT / "tests" / "soak", ROOT / "tests" / "retention_job" / "recorded"]
"""Of which commands of `perf` are made."""
SOURCES = list(chain.from_iterable(package.rglob("*.py") for package in (*PACKAGES, *INSTRUMENTS)))
PATHS = {
    f"/{path.relative_to(ROOT)}"
    for top in (*PACKAGES, *(ROOT / name for name in ("deploy", "docs", "tests")))
    for path in top.rglob("*")
}
PATHS |= {f"/{path.name}" for path in ROOT.iterdir()}
OUTSIDE = {
    "Kafka's settings that nothing here reads": "auto.create.topics.enable connections.max.reauth.ms "
    "partitioner.rack.aware "
    "leader.replication.throttled.rate num.replica.fetchers remote.log.metadata.topic.retention.ms "
    "replica.fetch.backoff.ms replica.fetch.wait.max.ms sasl.kerberos.principal.to.local.rules "
    "ssl.principal.mapping.rules super.users transaction.max.timeout.ms",
    "Kafka's tools and their options": "kafka-configs.sh kafka-dump-log.sh kafka-leader-election.sh kafka-topics.sh "
    "kafka-transactions.sh kafka-reassign-partitions.sh kafka-storage.sh --add-config --election-type "
    "--reassignment-json-file --generate",
    "Kafka's words, and classes that its settings are explained in": "diverging_epoch topic-partition KRaftConfigs "
    "ServerConfigs ServerLogConfigs ServerTopicConfigSynonyms SocketServerConfigs TopicConfig",
    "Spark's": "--archives --packages --py-files spark-class spark-submit spark.pyspark.python worker.Worker "
    "org.apache.spark.deploy.master.Master add_files spark.dataSource.register spark.sql.python.filterPushdown.enabled",
    "pip's": "--find-links --no-deps --no-index --require-hashes --wheel-dir host.lock",
    "the kernel's": "kernel.core_pattern",
    "systemd's": "DRILL_OPTIONS FileDescriptorName kafka.service LimitCORE Restart RestartSec StartLimitIntervalSec "
    "systemd-analyze TimeoutStartSec TimeoutStopSec Type WatchdogSec",
    "Docker's, Kubernetes' and Strimzi's": "Always network_mode spec.kafka.config kafka_run.sh kafka-server-start.sh "
    "FailedPreStopHook tls.crt tls.key ca.crt kafka-az1-0-agents remote-wal-http",
    "Python's, and of packages": "google-crc32c lint-imports ssl.SSLSocket.getpeercert Timeout",
    "of HTTP, and ranges of characters": "If-None-Match A-Z a-z",
    "made in use, or an example of a form": "remote.wal.x remote_wal_x .kafka/ state/ unfinished/ "
    "metadata-snapshots/ metadata-snapshots/1/",
}

OPTION = re.compile(r"--[a-z][a-z-]+$")
PATH = re.compile(r"[\w.][\w./-]*(/|\.(py|md|toml|lock|html|xml))$")
NAME = re.compile(r"(?=.*[a-z])(?!_[a-z]{1,3}$)(?=[A-Z]|\w*[._-]\w)[A-Za-z_][\w-]+(\.[\w-]+)*$")
COMMAND = re.compile(r"(?<![=\w])(?:remote-wal|\./run(?! test| release)|python -m (perf))((?: +[\w./:@,=*-]+)*)")


def _constants(constants: Iterable[object]) -> Iterator[object]:
    for constant in constants:
        yield constant
        if isinstance(constant, types.CodeType):
            yield from _constants(constant.co_consts)
        elif isinstance(constant, tuple | frozenset):
            yield from _constants(constant)


@cache
def _strings_and_names_of(source: Path) -> tuple[frozenset[str], frozenset[str]]:
    """So compiled, code has no docstrings."""
    constants = [*_constants([compile(source.read_text(), source, "exec", optimize=2)])]
    strings = frozenset(one for one in constants if isinstance(one, str))
    codes = [one for one in constants if isinstance(one, types.CodeType)]
    return strings, strings.union(*((*code.co_names, *code.co_varnames, code.co_name) for code in codes))


@cache
def _modules() -> dict[str, list[Path]]:
    """By name, from any of their packages on."""
    modules = defaultdict(list)
    for source in SOURCES:
        parts = source.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        for start in range(len(parts)):
            modules[".".join(parts[start:])].append(source)
    return modules


@cache
def _known() -> frozenset[str]:
    generated = "".join((ROOT / "docs" / name).read_text() for name in ("configuration.md", "metrics.md"))
    rows = re.findall(r"^\| `([\w.]+)`", generated, re.MULTILINE)
    names = (_strings_and_names_of(source)[1] for source in SOURCES)
    tables = (re.findall(r"[\w.-]+", table.read_text()) for package in PACKAGES for table in package.rglob("*.toml"))
    deployed = (path.name for path in (ROOT / "deploy").rglob("*"))
    return frozenset(chain(rows, deployed, _modules(), *names, *tables, *(words.split() for words in OUTSIDE.values())))


@cache
def _fragments() -> list[str]:
    strings = chain.from_iterable(_strings_and_names_of(source)[0] for source in SOURCES)
    return [one for one in strings if len(one) > 4 and re.fullmatch(r"_[a-z_]+|[a-z_]+_", one)]


def _is_dotted_name(name: str) -> bool:
    """Whether a module has it, or one module all of its parts."""
    parts = name.split(".")
    heads = [(".".join(parts[:end]), {*parts[end:]}) for end in range(1, len(parts) + 1)]
    places = chain(
        ((source, rest) for head, rest in heads for source in _modules().get(head, ())),
        ((source, {*parts}) for source in SOURCES),
    )
    return any(rest <= _strings_and_names_of(source)[1] for source, rest in places)


def _is_there(name: str) -> bool:
    if name in _known():
        return True
    if OPTION.match(name):
        return name[2:].removeprefix("no-").replace("-", "_") in _known()
    if PATH.match(name):
        return any(path.endswith("/" + name.strip("./")) for path in PATHS)
    if "." in name:
        if name.startswith(("remote.", "rsm.")):
            return re.sub(r"rsm\.wal\.(archive\.)?config\.", "", name) in _known()
        return _is_dotted_name(name)
    cuts = (name.split(fragment, 1) for fragment in _fragments() if fragment in name)
    return any(all(not part or part in _known() for part in cut) for cut in cuts)


def _false_names(text: str) -> list[str]:
    spans = re.findall(r"`+([^`]+)`+", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    words = (
        re.sub(r"(=|\{|::|\().*", "", word.strip(",;()[]\"'…|")).strip(":") for span in spans for word in span.split()
    )
    names = (word for word in words if OPTION.match(word) or PATH.match(word) or NAME.match(word))
    return [name for name in names if not _is_there(name)]


def _false_commands(text: str) -> list[str]:
    code = re.findall(r"```.*?```|`[^`]+`", text.replace("\\\n", " "), re.DOTALL)
    return [
        match[0] for one in code for match in COMMAND.finditer(one) if not is_command(match[1] or "", match[2].split())
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_names_exists(document: Path) -> None:
    text = document.read_text()
    assert (_false_names(text), _false_commands(text)) == ([], [])


def test_what_docstrings_and_comments_name_exists() -> None:
    false = {source.relative_to(ROOT).as_posix(): _false_names(source.read_text()) for source in SOURCES}
    assert {source: names for source, names in false.items() if names} == {}


@pytest.mark.parametrize(
    "false",
    [
        "AgentSetting",
        "Agent.running",
        "agent.settings.agent_settings.AgentSetting",
        "store.cost_model",
        "replication.open_framed",
        "open_framed",
        "agent/setting.py",
        "docs/performances.md",
        "remote.wal.link.wait.max",
        "remote_wal_fault_total",
        "--no-such-option",
        "link_defect_missing_one",
    ],
)
def test_a_false_name_is_found(false: str) -> None:
    assert _false_names(f"It is `{false}` that counts, as `AgentSettings` does.") == [false]


@pytest.mark.parametrize("false", ["remote-wal recovers", "remote-wal recover --dry", "python -m perf ladders"])
def test_a_false_command_is_found(false: str) -> None:
    assert _false_commands(f"`{false}`") == [false]
    assert _false_commands("`remote-wal recover --dry-run`, `./run topics enable TOPIC`, `python -m perf ladder`") == []

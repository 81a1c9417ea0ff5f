"""Asks registered agents over HTTP, all at once, so that one that does not answer holds nobody up."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.http.http_asking import ask_agent_page, is_on_own_host, why_silent
from agent.settings.process_settings import HttpSettings
from metadata_topic.settings.topic_settings import AgentRegistration

TIMEOUT_S: Final = 5.0
_LEFT_S: Final = 1.0
"""Seconds to find out why an agent does not answer."""


@dataclass(frozen=True, slots=True)
class AgentPage:
    """An agent's page, or the reason why there is none."""

    took_s: float
    page: dict[str, Any] | None
    failure: str = ""


def ask_agents(
    agents: Mapping[int, AgentRegistration],
    asking: HttpSettings | None,
    path: str = "/describe",
    timeout_s: float = TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, AgentPage]:
    """Return each agent's response at `path`, by broker id. Blocks for `timeout_s` and a second more at most, even if
    one sends its response slowly."""
    begun_s, answers = clock(), dict[int, AgentPage]()

    def answered(endpoint: str, page: dict[str, Any] | None, failure: str) -> AgentPage:
        if failure and is_on_own_host(endpoint):
            failure += " (only the agent's own host reaches it: remote.wal.agent.http.listener)"
        return AgentPage(clock() - begun_s, page, failure)

    def ask(broker_id: int, endpoint: str) -> None:
        page, failure = None, ""
        try:
            page = ask_agent(endpoint, asking, path, timeout_s)
        except Exception as error:  # whatever listens there may answer anything
            failure = why_silent(endpoint, error)
        # A loopback address, registered by an agent of another host, leads to the own one.
        if page is not None and (other := page.get("broker_id")) != broker_id:
            page, failure = None, f"{endpoint}: here, that is the agent of broker {other}"
        answers[broker_id] = answered(endpoint, page, failure)

    waiting = [
        threading.Thread(target=ask, args=(broker_id, agent.http_endpoint), daemon=True)
        for broker_id, agent in agents.items()
    ]
    for thread in waiting:
        thread.start()
    for thread in waiting:  # each ends by itself in time, unless its host's name is looked up for longer
        thread.join(max(begun_s + timeout_s + _LEFT_S - clock(), 0))
    late = {
        one: answered(agent.http_endpoint, None, f"{agent.http_endpoint}: no answer in time")
        for one, agent in agents.items()
        if one not in answers
    }
    return dict(sorted((late | answers).items()))


def ask_agent(
    endpoint: str, asking: HttpSettings | None, path: str = "/describe", timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Return a page of one agent, parsed from JSON. Raises OSError, ValueError."""
    answer = json.loads(ask_agent_page(endpoint, path, timeout_s, asking))
    if not isinstance(answer, dict):
        raise ValueError("what answers there is no agent")
    return answer

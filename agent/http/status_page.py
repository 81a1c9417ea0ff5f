"""The page for a person's browser: the answer first, then its details.

It loads nothing and runs nothing: one document with its style in it, which the browser reloads every five seconds. All
text from elsewhere (topics, zones, reasons) is escaped.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from agent.agent_state import presence_text
from agent.http.http_asking import base_url
from agent.http.status import Peer, Status
from agent.metrics.store_times import ANSWERS
from agent.metrics.topic_metrics import TopicState
from replication.follower.peer_watch import NOT_ASKED

MOST_TOPICS, MOST_PARTITIONS = 20, 20
_UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|d|[kMGT]?B)\b)")
"""Keeps a figure and its unit on one line."""
_LATE_MS = 60_000
"""A byte that waits longer for its upload is worth a look."""


def status_page(status: Status, release: str) -> bytes:
    """Return the status page as HTML."""
    tone = _tone(status)
    word = _word(tone, status)
    filled = Template(_document()).substitute(
        title=escape(f"broker {status.broker_id}: {word}"),
        tone=tone,
        word=word,
        broker=status.broker_id,
        facts=_facts(status, release),
        answer=_answer(status),
        notes=_notes(status),
        tiles=_tiles(status),
        topics=_topics(status),
        peers=_peers(status.peers),
        partitions=_partitions(status),
    )
    return filled.encode()


def _document() -> str:
    return (resources.files(__package__) / "status_page.html").read_text(encoding="utf-8")


def page_style() -> str:
    """Return the style element, for other pages that are to look alike."""
    return f"<style>{_document().partition('<style>')[2].partition('</style>')[0]}</style>"


def _tone(status: Status) -> str:
    is_silent = any(one.is_bypassed or not one.presence.is_there for one in status.peers if one.presence != NOT_ASKED)
    if status.reasons or status.gaps or is_silent or status.store_failed or status.broker_away:
        return "bad"
    is_asked = all(one.presence.is_there for one in status.peers)
    return "look" if status.degraded or not is_asked or status.all_topics.oldest_ms > _LATE_MS else "good"


def _word(tone: str, status: Status) -> str:
    if status.broker_away is not None:
        return "does not answer its agent"
    if tone != "good":
        return {"look": "to be looked at", "bad": "not well"}[tone]
    saves_nothing = status.dollars.stock > 0 and status.dollars.saved <= 0
    return "works, and saves nothing" if saves_nothing else "all well"


def _facts(status: Status, release: str) -> str:
    facts = [
        f"zone {status.zone}" if status.zone else "no zone known",
        f"cluster {status.cluster_id}" if status.cluster_id else "not relaying yet",
        f"up {duration(status.uptime_s)}",
        f"release {release}",
    ]
    return "".join(f"<li>{escape(fact)}</li>" for fact in facts)


def _answer(status: Status) -> str:
    """Answer each of three questions in one sentence: by links? all stored? worth it?"""
    return " ".join(f"<span>{part}</span>" for part in (_by_links(status), _stored(status), _saved(status)) if part)


def shadow_text(shadow: Mapping[str, Any]) -> str:
    """Describe what links would save, for an agent in shadow mode, and what is unknown."""
    saved = shadow["dollars"]["saved"]
    worth = f"{dollars(saved)} would be saved" if saved >= 0 else f"links would have cost {dollars(-saved)} more"
    return (
        "in shadow: nobody replicates through this agent; linked and inline bytes are those that would be, and "
        f"{worth} so far. Whether links would slow producers down: {shadow['producers_slowed']}"
    )


def _by_links(status: Status) -> str:
    total = status.all_topics
    if not status.cluster_id:
        return "Not relaying yet."
    if status.shadow is not None and total.moved_bytes:
        return f"By links would be <b>{share(total)}</b>."
    if not total.partitions:
        return "No topic led here replicates through object storage."
    if not total.moved_bytes:
        return "No follower has been sent records yet."
    if total.linked_bytes:
        return f"{'By links so far' if status.reasons else 'Replicating by links'}: <b>{share(total)}</b>."
    if status.links_never_pay:
        return "All goes inline: <b>links do not pay</b> here."
    if status.break_even_bytes and not status.reasons:
        return f"All goes inline: objects pay from <b>{size(status.break_even_bytes)}</b> on."
    return "<b>All goes inline.</b>"


def _stored(status: Status) -> str:
    total = status.all_topics
    if not total.partitions or status.shadow is not None:
        return ""
    if status.gaps:
        return f'<b class="wrong">{status.gaps:,} offsets are lost to storage.</b>'
    if not total.lag_bytes:  # bytes that went inline may be in no object, if nothing needs them stored
        return f"<b>{'Nothing waits to be stored' if total.inline_bytes else 'Everything stored'}.</b>"
    late = ' class="wrong"' if total.oldest_ms > _LATE_MS else ""
    return f"Stored but for the last <b{late}>{duration(total.oldest_ms / 1000)}</b>."


def _saved(status: Status) -> str:
    if not status.dollars.stock:
        return ""
    saved, would = status.dollars.saved, "" if status.shadow is None else " would be"
    return (
        f"<b>{dollars(saved)}</b>{would} saved."
        if saved >= 0
        else f'<b class="wrong">{dollars(-saved)}</b> more than inline.'
    )


def _notes(status: Status) -> str:
    notes = [("bad", reason) for reason in status.reasons] + [("look", reason) for reason in status.degraded]
    notes += [("look", shadow_text(status.shadow))] if status.shadow is not None else []
    items = "".join(f'<li class="{tone}">{escape(text)}</li>' for tone, text in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _tiles(status: Status) -> str:
    total, spent, requests = status.all_topics, status.dollars, status.requests
    failures = sum(count for label, count in requests.failures.items() if label not in ANSWERS)
    waits = f"the oldest byte for {duration(total.oldest_ms / 1000)}" if total.lag_bytes else "nothing waits"
    moved = f"{size(total.linked_bytes)} linked, {size(total.inline_bytes)} inline"
    store, seen = _store(status)
    would, now = ("", "by links and packing") if status.shadow is None else (", would be", "by links")
    lag = size(total.lag_bytes)
    if status.shadow is not None:
        lag, waits = "all", "nothing is uploaded"
    return "".join(
        (
            _tile(f"By links{would}", share(total), moved, _bar(total)),
            _tile("Not stored yet", lag, waits),
            _tile(
                f"Saved{would}",
                dollars(spent.saved),
                f"beside stock Kafka, which sends every byte as it is: {dollars(spent.stock)} of cross-zone traffic "
                f"there; {dollars(spent.crossings)} {now}, {dollars(spent.requests)} for requests",
            ),
            _tile("Store", store, f"{seen}; {requests.put:,} PUT, {requests.get:,} GET, failed attempts: {failures:,}"),
        )
    )


def _store(status: Status) -> tuple[str, str]:
    """Describe the state of the store, and since when."""
    ago, (state, failure) = status.store_answered_s_ago, status.store
    seen = "never answered yet" if ago is None else f"answered {duration(ago)} ago"
    if status.store_failed is not None:
        seen = f"{failure} {duration(status.store_failed[0])} ago; {seen}"
    return state, seen


def _tile(name: str, value: str, more: str, drawn: str = "") -> str:
    """Return a tile; `drawn` is markup."""
    unbroken = _UNIT.sub("\N{NO-BREAK SPACE}", escape(more))
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd>{drawn}<p>{unbroken}</p></div>"


def _bar(moved: TopicState) -> str:
    if not moved.moved_bytes:
        return '<i class="bar"></i>'
    percent = 100 * moved.linked_bytes / moved.moved_bytes
    return f'<i class="bar"><i style="width:{percent:.1f}%"></i></i>'


def _topics(status: Status) -> str:
    rows = [
        (
            escape(topic),
            f"{_bar(one)}<span>{share(one)}</span>",
            *_why(status, topic),
            size(one.lag_bytes),
            duration(one.oldest_ms / 1000),
            size(one.linked_bytes),
            size(one.inline_bytes),
            f"{one.pack_ratio:.1f} times" if one.pack_ratio > 1 else "",
            f"{one.partitions:,}",
        )
        for topic, one in list(status.topics.items())[:MOST_TOPICS]
    ]
    heads = (
        "topic",
        "by links",
        "last minute",
        "last hour",
        "how it travels",
        "not stored",
        "oldest",
        "linked",
        "inline",
        "packed",
        "partitions",
    )
    return _table(heads, rows, len(status.topics), "No topic with links is led here.")


def _why(status: Status, topic: str) -> tuple[str, str, str]:
    why = status.why.get(topic)
    if why is None:
        return "", "", ""
    minute, hour = ("none" if one is None else f"{100 * one:.1f} %" for one in (why.minute, why.hour))
    return minute, hour, f"{escape(why.plain)}<small>{escape(why.numbers)}</small>"


def _partitions(status: Status) -> str:
    rows = [
        (
            escape(f"{one.topic}-{one.partition}"),
            f"{one.log_end_offset - one.uploaded_offset:,}",
            size(one.lag_bytes),
            duration(one.lag_age_ms / 1000),
        )
        for one in status.partitions[:MOST_PARTITIONS]
    ]
    heads = ("partition", "offsets behind", "not stored", "oldest")
    return _table(heads, rows, len(status.partitions), "None is led here.")


def _peers(peers: Sequence[Peer]) -> str:
    rows = [
        (
            _agent_link(one),
            escape(one.zone or "unknown") + (" (own)" if one.is_own_zone else ""),
            escape(one.version or "unknown"),
            _agent(one),
            size(one.sent_bytes),
            size(one.stock_bytes),
        )
        for one in peers
    ]
    return _table(
        ("peer", "zone", "release", "agent", "sent", "by stock Kafka"), rows, len(rows), "There are no peers."
    )


def _agent_link(peer: Peer) -> str:
    """Return the broker's name, as a link to its agent's own page if that is known."""
    name, where = f"broker {peer.broker_id}", peer.http_endpoint
    url = base_url(where)
    if not where or not url.startswith(("http://", "https://")):
        return name
    return f'<a href="{escape(url)}/">{name}</a>'


def _agent(peer: Peer) -> str:
    text = ("dead, bypassed; " if peer.is_bypassed else "") + presence_text(peer.presence)
    is_well = peer.presence.is_there and not peer.is_bypassed
    return escape(text) if is_well else f'<b class="bad">{escape(text)}</b>'


def _table(heads: Iterable[str], rows: Sequence[Iterable[str]], there_are: int, none: str) -> str:
    """Return a table. Cells are escaped already."""
    if not rows:
        return f'<p class="none">{escape(none)}</p>'
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    more = f'<p class="none">and {there_are - len(rows):,} more</p>' if there_are > len(rows) else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def share(moved: TopicState) -> str:
    """Return the linked share as text: 100 % only if nothing went inline."""
    if not moved.moved_bytes:
        return "none"
    permille = 1000 * moved.linked_bytes // moved.moved_bytes
    return f"{permille / 10:.1f} %"


def size(count: float) -> str:
    """Format a size in decimal units, as clouds bill."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("the last unit takes all")


def duration(seconds: float) -> str:
    """Format a duration with about two digits."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def dollars(amount: float) -> str:
    """Format dollars, with fractions of a cent for small amounts."""
    if 0 < abs(amount) < 0.0001:
        return "under $0.0001"
    digits = 2 if abs(amount) >= 0.1 or amount == 0 else 4
    return f"{'-' if amount < 0 else ''}${abs(amount):,.{digits}f}"

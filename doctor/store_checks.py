"""Checks of the object store, by what a probe object told."""

from agent.setting_types import milliseconds
from doctor.cluster_checks import judge_clocks
from doctor.facts import Facts, Store, Unknown
from doctor.findings import Finding, Level

_STEPS = ("put", "list", "get", "delete")


def store_settings(facts: Facts) -> Finding:
    """Whether the storage manager takes its settings, and the store is there."""
    check = "store-settings"
    if isinstance(facts.store, Unknown):
        return Finding(check, Level.UNKNOWN, facts.store.reason)
    failure = facts.store.failures.get("open")
    if failure is None:
        return Finding(check, Level.OK, facts.settings.storage.manager_class_name)
    return Finding(check, Level.ERROR, failure.text, "correct the key that is named")


def store_permissions(facts: Facts) -> Finding:
    """Whether objects may be written, listed, read and deleted."""
    check = "store-permissions"
    store = _opened(facts)
    if isinstance(store, Unknown):
        return Finding(check, Level.UNKNOWN, store.reason)
    failures = [(step, store.failures[step]) for step in _STEPS if step in store.failures]
    if not failures:
        return Finding(check, Level.OK, ", ".join(_STEPS) + " succeeded")
    found = "; ".join(failure.text for _, failure in failures)
    denied = [step for step, failure in failures if failure.label == "access"]
    if denied:
        return Finding(check, Level.ERROR, found, f"allow {', '.join(denied)}: see docs/operations.md, The bucket")
    return Finding(check, Level.ERROR, found, "see that the store is there and answers")


def store_conditional_put(facts: Facts) -> Finding:
    """Whether the store keeps an object from being overwritten."""
    check = "store-conditional-put"
    store = _opened(facts)
    refuses = store if isinstance(store, Unknown) else store.refuses_overwriting
    if isinstance(refuses, Unknown):
        return Finding(check, Level.UNKNOWN, refuses.reason)
    if refuses:
        return Finding(check, Level.OK, "a second PUT of the same key was refused")
    return Finding(
        check,
        Level.ERROR,
        "the store let a conditional PUT (If-None-Match: *) overwrite an object",
        "use a store that honours conditional writes",
    )


def store_shared(facts: Facts) -> Finding:
    """Whether another cluster writes under the same prefix: who may read one's records may read the other's."""
    check = "store-shared"
    store = _opened(facts)
    others = store if isinstance(store, Unknown) else store.other_clusters
    if isinstance(others, Unknown) or isinstance(store, Unknown):
        return Finding(check, Level.UNKNOWN, others.reason if isinstance(others, Unknown) else "")
    if others:
        prefix = f"{facts.settings.storage.manager_impl_prefix}prefix"
        return Finding(
            check,
            Level.WARNING,
            f"other clusters' objects under the same prefix: {', '.join(sorted(others))}; credentials reach both",
            f"give each cluster a bucket, or a {prefix} and permissions for that alone",
        )
    if not store.looked_at_all:
        found = f"none of another cluster among the first {store.keys_looked_at:,} keys; there are more"
        return Finding(check, Level.INFORMATION, found)
    return Finding(check, Level.OK, f"no object of another cluster among {store.keys_looked_at:,}")


def clock_store(facts: Facts) -> Finding:
    """Whether this host and the store agree on the time."""
    check = "clock-store"
    store = _opened(facts)
    clock = store if isinstance(store, Unknown) else store.clock
    if isinstance(clock, Unknown):
        return Finding(check, Level.UNKNOWN, clock.reason)
    return judge_clocks(check, {"the object store": clock}, milliseconds(facts.settings.lifecycle.uncommitted_ttl_s))


def _opened(facts: Facts) -> Store | Unknown:
    if isinstance(facts.store, Unknown):
        return facts.store
    return Unknown("the store could not be opened") if "open" in facts.store.failures else facts.store

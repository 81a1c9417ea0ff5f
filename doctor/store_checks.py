"""Checks the object store, by what a probe object showed."""

from agent.settings.setting_types import milliseconds
from doctor.facts import Facts, Store, Unknown, UnknownFactError, known
from doctor.findings import Level, Verdict, some_of
from plugin.errors import RemoteStorageConfigError
from plugin.loading import IMPL_PREFIX
from plugin.prices import EXPRESS
from plugin.zones.buckets import BUCKETS_KEY, check_own_zone

_SKEW_MS = 5_000
_NTP = "let NTP set the clocks"
_STEPS = ("put", "list", "get", "delete")


def store_settings(facts: Facts) -> Verdict:
    """Check whether the storage manager accepts its settings, and the object store responds."""
    store = known(facts.store)
    failure = store.failures.get("open")
    if failure is None:
        return Verdict(Level.OK, facts.settings.storage.manager_class_name)
    return Verdict(Level.ERROR, failure.text, "correct the key that is named")


def store_permissions(facts: Facts) -> Verdict:
    """Check whether objects may be written, listed, read and deleted."""
    store = _opened(facts)
    failures = [(step, store.failures[step]) for step in _STEPS if step in store.failures]
    if not failures:
        return Verdict(Level.OK, ", ".join(_STEPS) + " succeeded")
    found = "; ".join(failure.text for _, failure in failures)
    denied = [step for step, failure in failures if failure.label == "access"]
    if denied:
        return Verdict(Level.ERROR, found, f"allow {', '.join(denied)}: see docs/operations.md, The bucket")
    return Verdict(Level.ERROR, found, "see that the store is there and answers")


def store_conditional_put(facts: Facts) -> Verdict:
    """Check whether the store protects an object from being overwritten."""
    if known(_opened(facts).refuses_overwriting):
        return Verdict(Level.OK, "a second PUT of the same key was refused")
    return Verdict(
        Level.ERROR,
        "the store let a conditional PUT (If-None-Match: *) overwrite an object",
        "use a store that honours conditional writes",
    )


def store_buckets(facts: Facts) -> Verdict:
    """Check whether this broker's zone has a bucket, and the others can be read and deleted."""
    buckets, spec = facts.settings.storage.buckets, facts.settings.store_spec(facts.broker)
    if not buckets:
        return Verdict(Level.OK, "one bucket for all zones")
    try:
        check_own_zone(spec)
    except RemoteStorageConfigError as error:
        return Verdict(Level.ERROR, str(error), f"name a bucket for it in {BUCKETS_KEY}, or correct broker.rack")
    told = [
        f"{name}: {step}: {failure.text}"
        for name, store in facts.other_buckets.items()
        for step, failure in known(store).failures.items()
        if step != "put"
    ]
    if told:
        hint = "allow list, get and delete in all of them, and see that they answer"
        return Verdict(Level.WARNING, "; ".join(told), hint)
    return Verdict(Level.OK, f"{len(buckets)} zones, {buckets[facts.broker.rack or '']} for this one")


def store_zones(facts: Facts) -> Verdict:
    """Check whether records that are on only one broker's disk would survive the loss of a zone."""
    settings = facts.settings.storage
    if settings.price_section != EXPRESS and not settings.buckets:
        return Verdict(Level.OK, "no store of one zone is known here")
    topics = known(facts.topics).items()
    needing = sorted(name for name, topic in topics if topic.is_durable or topic.replicas == 1)
    if not needing:
        return Verdict(Level.OK, "a zone's store; no topic is durable or has one replica")
    found = (
        f"durable or with one replica, and stored in one zone alone: {some_of(needing)}. They are lost with that zone"
    )
    return Verdict(Level.WARNING, found, "use a regional store: S3 Standard, Google Cloud Storage, Azure")


def store_shared(facts: Facts) -> Verdict:
    """Check whether another cluster writes under the same prefix: whoever may read one's records could read the
    other's."""
    store = _opened(facts)
    others = known(store.other_clusters)
    if others:
        return Verdict(
            Level.WARNING,
            f"other clusters' objects under the same prefix: {', '.join(sorted(others))}; credentials reach both",
            f"give each cluster a bucket, or a {IMPL_PREFIX}prefix and permissions for that alone",
        )
    if not store.looked_at_all:
        found = f"none of another cluster among the first {store.keys_looked_at:,} keys; there are more"
        return Verdict(Level.INFORMATION, found)
    return Verdict(Level.OK, f"no object of another cluster among {store.keys_looked_at:,}")


def store_versions(facts: Facts) -> Verdict:
    """Check whether the bucket keeps versions of deleted objects: they would be paid for, and readable, for ever."""
    keeps = _opened(facts).keeps_versions
    if isinstance(keeps, Unknown):
        hint = "allow s3:GetBucketVersioning, or see yourself that the bucket keeps no versions"
        return Verdict(Level.INFORMATION, f"not known whether the bucket keeps versions: {keeps.reason}", hint)
    if keeps:
        return Verdict(
            Level.WARNING,
            "the bucket keeps versions: what agents delete stays there, is paid for, and can be read",
            "suspend versioning, or add a lifecycle rule with NoncurrentVersionExpiration",
        )
    return Verdict(Level.OK, "no versions are kept" if keeps is False else "the store is none that keeps versions")


def clock_store(facts: Facts) -> Verdict:
    """Check whether this host's clock and the object store's agree. The limit follows from the time to live of
    uncommitted uploads."""
    skew_ms = known(_opened(facts).clock).skew_ms
    ttl_ms = milliseconds(facts.settings.lifecycle.uncommitted_ttl_s)
    found = f"the object store is {abs(skew_ms)} ms {'ahead' if skew_ms > 0 else 'behind'}" if skew_ms else "they agree"
    if abs(skew_ms) <= _SKEW_MS:
        return Verdict(Level.OK, found)
    if 2 * abs(skew_ms) < ttl_ms:
        return Verdict(Level.WARNING, found, _NTP)
    found += f": too near to remote.wal.uncommitted.ttl.ms {ttl_ms}, by which uploads are deleted"
    return Verdict(Level.ERROR, f"{found}. An agent whose clock is that far off deletes nothing", _NTP)


def _opened(facts: Facts) -> Store:
    store = known(facts.store)
    if "open" in store.failures:
        raise UnknownFactError("the store could not be opened")
    return store

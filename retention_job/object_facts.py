"""What tables of objects have in common: they are made of facts, one for each state that somebody tells of, and an
object's states come in the order of `TIMES`.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TIMES: Final = ("started_ms", "finished_ms", "deleting_ms", "deleted_ms")
"""When an object came to each of its states, 0 to 3."""


def nulls(kind: str, *names: str) -> "list[Column]":
    """Columns that a fact says nothing of."""
    from pyspark.sql import functions as f

    return [f.lit(None).cast(kind).alias(name) for name in names]


def first_times() -> "list[Column]":
    """TIMES, as aggregates of facts with `state` and `event_timestamp_ms`."""
    from pyspark.sql import functions as f

    return [
        f.min(f.when(f.col("state") == state, f.col("event_timestamp_ms"))).alias(name)
        for state, name in enumerate(TIMES)
    ]


def with_events(table: "DataFrame") -> "DataFrame":
    """The reverse: a row for each state that an object was seen in, with `state` and `event_timestamp_ms` of it."""
    from pyspark.sql import functions as f

    events = f.array(
        *(
            f.struct(f.lit(state).alias("state"), f.col(name).alias("event_timestamp_ms"))
            for state, name in enumerate(TIMES)
        )
    )
    seen = f.filter(events, lambda event: event.event_timestamp_ms.isNotNull())
    return table.drop("state").select("*", f.inline(seen))


def is_stored(has_inventory: bool) -> "Column":
    """Whether the object is in the inventory; null where there is none."""
    from pyspark.sql import functions as f

    return f.col("stored_ms").isNotNull() if has_inventory else f.lit(None).cast("boolean")

"""What a large number of runs must have met; `World.hit` counts it."""

FAULTS = (
    "upload fails before effect", "upload fails after effect", "upload hangs before effect",
    "upload hangs after effect", "crash before an upload's effect", "crash after an upload's effect",
    "publication lost with a crash", "publication survives a crash", "publication refused",
    "events overflow", "watch refused", "passed over", "truncated", "gap declared", "resumed with a hole",
    "bulk gathered",
)  # fmt: skip

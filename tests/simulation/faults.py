"""What a large number of runs must have met; `World.hit` counts it.

Each of the store's effects fails before it and after it, hangs before and after, and is under way when its agent dies.
"""

FAULTS = (
    "upload fails before effect", "upload fails after effect", "upload hangs before effect",
    "upload hangs after effect", "upload takes effect late",
    "crash before an upload's effect", "crash after an upload's effect",
    "publication lost with a crash", "publication survives a crash", "publication refused",
    "events overflow", "watch refused", "passed over", "truncated", "gap declared", "resumed with a hole",
    "deletion fails before effect", "deletion fails after effect", "deletion hangs before effect",
    "deletion hangs after effect", "listing fails before effect", "listing fails after effect",
    "crash before a deletion's effect", "crash after a deletion's effect", "taken over", "topic deleted",
    "cut off and stored", "unknown orphan", "deleted orphan", "orphan confirmed", "torn batch",
    "archive write fails before effect", "archive write fails after effect", "archive write takes effect late",
    "archive hangs before effect", "archive hangs after effect", "archive listing fails before effect",
    "archive listing fails after effect", "archive deletion fails before effect", "archive deletion fails after effect",
    "crash before an archive write's effect", "crash after an archive write's effect",
    "archive read fails before effect", "archive read fails after effect", "archive read gives too little",
    "archive read gives other bytes", "archive read gives of another place", "archive read gives of another object",
    "archive object given up", "archive orphan", "archive orphan after its deletion",
    "broker crashed", "broker paused", "agent paused", "agent stopped", "connection cut", "half of a frame",
    "power lost", "replica compacted",
    "zones cut apart", "unclean election", "truncated by epoch", "segment deleted", "fetch session forgotten",
    "adopted", "other bytes offered", "swept", "told late of an adoption", "a gateway's deletion fails",
    "acknowledged", "object lost", "read fails before effect", "read fails after effect", "read hangs",
    "read gives too little", "read gives other bytes", "read gives of another place", "read gives of another object",
    "response linked", "response inline", "wrong bytes refused", "wrong bytes read again", "object missed",
    "object late", "link waited for in vain", "links paused", "links resumed", "response too late", "agent bypassed",
    "agent trusted again", "peer silent", "peer unreachable", "broker unreachable",
    "bytes of a neighbour", "neighbour slow", "neighbour gone", "neighbour refuses", "neighbour gave wrong bytes",
)  # fmt: skip

"""Rebuilds a broker's log directories from object storage, checks what is stored, and moves partitions.

`metadata/`: what is stored, and rebuilding a lost metadata topic; `logs/`: which runs make a log, how they are read and
written; `reassignment/`: moves. `broker_recovery` puts a broker's logs together, `verification` reads what would be
needed.
"""

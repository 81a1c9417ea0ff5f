"""A broker's log directories out of object storage, checks of what is stored, and moves of partitions.

`metadata/`: what is stored, and a lost metadata topic told anew; `logs/`: which runs make a log, how they are read and
written; `reassignment/`: moves. `broker_recovery` puts a broker's logs together, `verification` reads what would be
needed.
"""

"""A broker's log directories out of object storage, checks of what is stored, and moves of partitions.

`inventory` what is stored, `log_plan` which runs make a log, `restore` and `log_writer` write it, `verification` reads
what would be needed, `topic_rebuild` tells a lost metadata topic anew, `reassignment*` moves partitions.
"""

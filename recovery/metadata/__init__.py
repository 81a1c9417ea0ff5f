"""What is known of objects.

In the order in which data meets them:

- `inventory`: every run, by the topic, or by the objects' `footers`
- `epoch_ends`: where leaders said that epochs end
- `absent_objects`: which absent objects agents may have deleted
- `topic_rebuild`: writes the topic again
"""

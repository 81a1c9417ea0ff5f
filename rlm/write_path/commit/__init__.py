"""Decides whether bytes go by link or inline, and when an upload starts. Sans-IO: events, questions, and `now`.

In the order in which a batch meets them:

- `link_policy`: `LinkDecider.decide` says of a load how it travels and when its upload starts, and changes nothing.
- `price`: what an object and an inline byte cost now, and whether the present rate pays for objects (`link_costs` has
  the sums).
- `trial`: whether links hold records back at a topic's producers, found by taking links away for a moment.
- `cadence`: when an upload starts.
- `constants`: the numbers of all four, each with its unit and its measurement.
- `bandwidth`: a meter and a limit of bytes per second, used elsewhere, too.
"""

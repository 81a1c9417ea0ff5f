"""Decides whether bytes go by link or inline, and when an upload starts. Sans-IO: events, questions, and `now`.

In the order in which a batch meets them:

- `link_policy`: `LinkDecider.decide` says of a load how it travels and when its upload starts, and changes nothing. It
  asks the other three, and is told what happened.
- `price`: whether the present rate pays for objects (`rlm.write_path.link_costs` says what these cost).
- `trial`: whether links hold records back at a topic's producers, found by taking links away for a moment.
- `cadence`: when an upload starts.
- `bandwidth`: a meter and a limit of bytes per second. `constants`: the numbers of all of them.

`rlm.write_path.explanation` says in words what was decided.
"""

"""The constants of the link policy, each with its unit, and where it was measured, or "guessed"."""

from typing import Final

# Price

RATE_S: Final = 0.3
"""Seconds over which rates are averaged. Measured (`perf cost`): with 0.1, short bursts that do not pay were linked."""
BURST_S: Final = 0.25
"""Seconds' worth of bytes that a limit saves up while idle. Guessed."""
PAYS_TIMES: Final = 1.5
"""How often an object should pay for itself on average, so that a small one now and then costs nothing. Guessed."""
GAINED_MAX: Final = 20.0
"""Objects' worth that larger objects may lend later ones; links rest once these lost one object's worth more. Measured
(2026-11-28): with 1, two small objects in a row, as a busy machine makes them, ended links of 40 idempotent producers
for 20 s: of 6 MB/s 35 % were linked, with 20 94 %."""

# Trial

LOOK_S: Final = (0.4, 2.0)
"""Seconds of a look inline, and of one whose surplus grows. Measured on two busy cores (2026-11-28): looks of 0.4 s
told held-up loads from others. The longer one is guessed."""
LOOKS: Final = 3
"""Looks in a row for a verdict. Measured (2026-11-28): loads that links do not hold back voted up to twice in a row."""
PERIOD_S: Final = (10.0, 120.0)
"""Seconds from one look to the next, doubled while all is well. Measured: from 5 s on, they took 4 % of 30 s."""
HOLD_OFF_S: Final = (20.0, 600.0)
"""Seconds inline after a verdict, doubled with each in a row; links that do not pay rest for the first. Guessed."""
GROWS: Final = 1.3
"""A surplus still grows while so many times the usual rate comes. Guessed."""

# Cadence

LULL_S: Final = 0.01
"""Seconds without new records after which all producers are taken to wait. Measured (2026-11-28): by links 40
librdkafka producers brought one batch each in a round, 44 KB; waiting for 50 KB took them 100 ms."""
OBJECT_BYTES: Final = 512 * 1024
"""Bytes in an object from which on a larger one saves little CPU. Measured (docs/performance.md): 25 MB/s took agents
0.93 core with 90 KB in an object, 0.68 with 210 KB and 0.52 with 420 KB."""

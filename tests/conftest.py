"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes is the machine's matter, and this one may be busy: no test of ours judges by the clock.
settings.register_profile("remote-wal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("remote-wal")

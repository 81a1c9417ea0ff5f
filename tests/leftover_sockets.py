"""What PySpark and kafka-python leave to the garbage collector: sockets of finished jobs and refused connections."""

import pytest

LEAVES_SOCKETS = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

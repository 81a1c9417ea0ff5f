"""What spark-submit starts on a cluster: the command, as `remote-wal` has it.

A script's own directory is the first of Python's path, and modules of this one are named as rooms are (`agent`,
`demo`). So it is taken off the path before anything is imported; the rooms come from `--py-files`, or else from where
this file lies.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _HERE]
    sys.path.append(str(_HERE.parent))
    from cli.main import main

    main()

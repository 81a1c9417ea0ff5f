"""The script for spark-submit: the same command as in `remote-wal`.

Python puts a script's own directory first on its path, and modules in this one are named like packages (`agent`,
`demo`). So it is taken off the path before anything is imported; the packages come from `--py-files`, or else from the
directory of this file.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _HERE]
    sys.path.append(str(_HERE.parent))
    from cli.main import main

    main()

"""Tokenise a corpus: Megatron-LM's script name for `megalith data prepare`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megalith.cli import main

if __name__ == "__main__":
    sys.exit(main(["data", "prepare", *sys.argv[1:]]))

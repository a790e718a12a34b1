"""Train a GPT: Megatron-LM's script name for `megalith pretrain gpt`."""

import sys

from megalith.cli import main

if __name__ == "__main__":
    sys.exit(main(["pretrain", "gpt", *sys.argv[1:]]))

#!/usr/bin/env bash
# From text to a trained GPT: `examples/demo.sh [FOLDER]`, or `make demo`, which installs first.
#
# Each run starts anew: the folder (default runs/demo) is emptied first.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-runs/demo}

rm -rf "$folder"
mkdir -p "$folder"

echo "== 1. Tokenise examples/austen.jsonl"
megalith data prepare --input examples/austen.jsonl --output-prefix "$folder/austen" --append-eod

echo "== 2. Train on 2 processes"
megalith launch --nproc-per-node 2 pretrain gpt --preset demo --data-path "$folder/austen" \
    --save "$folder/checkpoints" --log-jsonl "$folder/log.jsonl"

echo "== 3. Let it write"
megalith generate --load "$folder/checkpoints" --prompt "It is a truth universally acknowledged" \
    --num-tokens 400 --temperature 0.8 | tee "$folder/sample.txt"

echo "== 4. Draw the loss"
megalith plot "$folder/log.jsonl" "$folder/loss.svg"

echo
echo "Done. In $folder: checkpoints/, sample.txt, log.jsonl, and the loss curve loss.svg."

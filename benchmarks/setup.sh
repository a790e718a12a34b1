#!/bin/sh
# Makes an environment with Megalith from this checkout and its peers: setup.sh [FOLDER]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
folder=${1:-$here/.venv}
python=$(sh "$root/tools/find_python.sh")
"$python" "$root/tools/setup_environment.py" "$folder"
# Naming torch again keeps the peers from asking for another one.
torch=$("$folder/bin/python" -c 'from importlib.metadata import version; print(version("torch"))')
"$folder/bin/python" -m pip install -qq "torch==$torch" -r "$here/requirements.txt"
echo "Ready: $folder/bin/python -m benchmarks.step_speed --help"

#!/bin/sh
# Prints the first Python of 3.11 or newer among the arguments or, without any, the usual names.
[ $# -gt 0 ] || set -- python3 python3.13 python3.12 python3.11 python3.14 python
for candidate in "$@"; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "$candidate"
        exit 0
    fi
done
echo "Megalith needs Python 3.11 or newer; found none (tried: $*)." >&2
echo "Install one, or say where it is: make PYTHON=/path/to/python3.11 ..." >&2
exit 1

#!/bin/sh
# Print the path of the first Python that roll can be installed with; if there is none, say in one line what is missing.
#   find_python.sh [NAME...]    names or paths, in order of preference (default: the tested version first)
[ $# -gt 0 ] || set -- python3.11 python3.12 python3.13 python3.14 python3.15 python3 python
reason=

# Prints major.minor. A shim of pyenv is there for every version, and runs only for those that are switched on.
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

for name in "$@"; do
  for python in "$(command -v "$name" 2>/dev/null)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/"$name"; do
    [ -x "$python" ] || continue
    found=$(version "$python") || continue
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      reason=${reason:-"$python is Python $found: roll needs Python 3.11 or newer."}
    elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
      reason="$python has no venv module. Install it (Debian, Ubuntu: apt install python$found-venv), or name another Python: make PYTHON=/path/to/python3"
    else
      echo "$python"
      exit 0
    fi
  done
done
echo "${reason:-"No Python here: roll needs Python 3.11 or newer (looked for $*). Install one, or name it: make PYTHON=/path/to/python3"}" >&2
exit 1

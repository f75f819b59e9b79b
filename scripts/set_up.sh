#!/bin/sh
# Make a virtual environment and install into it; whatever stops that is said in one line.
#   set_up.sh FOLDER PYTHON GIGABYTES [PIP_ARGUMENTS...]    PYTHON may be empty: then one is looked for
set -u
folder=$1 wanted=$2 gigabytes=$3
shift 3
python=$(sh "$(dirname "$0")/find_python.sh" ${wanted:+"$wanted"}) || exit 1

free=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
if [ "${free:-$gigabytes}" -lt "$gigabytes" ]; then
  echo "Not enough disk space: the packages take about $gigabytes GB, and $free GB are free in $(pwd)." >&2
  exit 1
fi

"$python" -m venv "$folder" || { echo "$python cannot make a virtual environment in $(pwd)/$folder: see above." >&2; exit 1; }
[ $# -gt 0 ] || exit 0
pins="-c constraints.txt"
if ! "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 15))'; then
  echo "constraints.txt pins versions for Python 3.11 to 3.14; $python is newer, so the newest packages are installed." >&2
  pins=
fi
# Bytecode is made of what is imported, when it is: that of every file of PyTorch takes as long as all the rest.
said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
"$folder/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check $pins "$@" 2>"$said"
code=$?
cat "$said" >&2
[ $code -eq 0 ] && exit 0
if grep -qi "no space left on device" "$said"; then
  echo "The disk is full: free some space (packages: $(pwd)/$folder, what pip keeps while it installs: ${TMPDIR:-/tmp}), and call make again." >&2
elif grep -Eqi "(gcc|g\+\+|cc|clang|compiler).*(not found|no such file|failed)|no such file.*(gcc|g\+\+|'cc'|clang)" "$said"; then
  echo "A package has to be compiled here, and there is no compiler. Install one (Debian, Ubuntu: apt install build-essential), or take Python 3.11 to 3.13, for which nothing is compiled on Linux: make PYTHON=python3.11" >&2
elif grep -Eqi "connection|name resolution|timed out" "$said"; then
  echo "The packages could not be downloaded: see above. Call make again when the network is there." >&2
elif [ -z "$pins" ]; then
  echo "Not all packages are there for $python yet: see above. Take Python 3.11 to 3.14: make PYTHON=python3.14" >&2
else
  echo "The packages could not be installed into $folder: see above." >&2
fi
exit 1

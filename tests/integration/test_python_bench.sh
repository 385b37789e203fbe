#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The benchmark of the Python package measures and compares the right things and draws the plots. It does not
# check figures, which mean nothing on a machine that runs tests.
set -eu
. "$(dirname "$0")/../python.sh"
[ -z "$sanitizer" ] || skip "python-bench: not with sanitizers: the C side is a program of its own"
"$PYTHON" -c 'import numpy' 2>/dev/null || skip "python-bench: $PYTHON has no NumPy: install python3-numpy"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$PYTHON" "$root/client/python/bench/overhead.py" --quick --only "4 KiB" --json-dir "$dir" >"$dir/out" 2>&1 ||
    { cat "$dir/out"; exit 1; }
[ "$(grep -c 'ratio' "$dir/out")" = 3 ] || { cat "$dir/out"; echo "not three rows"; exit 1; }
grep -q '"cpu"' "$dir/python.json" || { echo "the JSON does not name the machine"; exit 1; }

# Wrong bytes are reported.
"$PYTHON" - "$root" >"$dir/out" 2>&1 <<'P' || { cat "$dir/out"; exit 1; }
import sys
sys.path.insert(0, sys.argv[1] + "/client/python/bench")
import overhead, tarn
with overhead.local_nodes({"n": ["cpu0:bytes=64M"]}) as redis, tarn.Client(redis) as client:
    work, c_side = overhead.Work(client, "w", 4, 4096), overhead.CSide(redis)
    row = overhead.rows(False)[0]._replace(count=4)
    overhead.in_turn(row, work, c_side, 1)
    wrong = overhead.words(3, 4096)
    wrong[-1] ^= 1
    client.put("w/3", wrong, replace=True)
    for side in (lambda: c_side.run("get", "w", 4, 4096), lambda: c_side.run("batch", "w", 4, 4096),
                 lambda: c_side.run("fresh", "w", 4, 4096), lambda: overhead.get_into(work),
                 lambda: overhead.get(work, "numpy"), lambda: overhead.get_into_many(work, work.room)):
        try:
            side()
        except RuntimeError as e:
            assert "bytes are wrong" in str(e), e
        else:
            sys.exit("wrong bytes are not told")
    c_side.close()
P

"$PYTHON" -c 'import matplotlib' 2>/dev/null || { echo "skip: matplotlib: not installed: no plots"; exit 0; }
cat >"$dir/shm.json" <<'J'
[{"bench": "shm_get", "bytes": 4096, "pieces": 1, "threads": 1, "depth": 1, "ours": {"GBps": 1.5},
  "limit": {"name": "memcpy", "GBps": 2.5}, "peers": [{"name": "Redis (Unix socket)", "GBps": 0.1}],
  "machine": {"cpu": "c", "cores": 2, "date": "2026-01-01T00:00:00Z"}}]
J
"$PYTHON" "$root/client/python/bench/plots.py" "$dir" "$dir/plots" >"$dir/out" 2>&1 || { cat "$dir/out"; exit 1; }
[ "$(ls "$dir/plots")" = get.png ] || { ls "$dir/plots"; echo "not the one plot that there are rows for"; exit 1; }

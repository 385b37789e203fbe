#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that comments of product files name exist: they name a path, its end or its last part. Not looked for are
the system's, such as <infiniband/verbs.h>, and NAME_node.c and the like. Prints every finding."""

import re
import subprocess
import sys
from pathlib import Path

# Literals come first: they may hold what looks like a comment. The group is set for comments only.
TOKENS = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(/\*.*?\*/|//[^\n]*)""", re.S)
NAMES = re.compile(r"(?<![<\w./-])(?!NAME_)[\w./-]*\w\.(?:c|h|cu|py|sh|md)\b(?![./-]\w)")


def tree():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True, check=True).stdout.split()
    return [f for f in listed if Path(f).exists()]


def main():
    files = tree()
    ends = {"/".join(parts[i:]) for parts in (f.split("/") for f in files) for i in range(len(parts))}
    found = []
    for file in files:
        if not re.match(r"(include|base|metadata|transport|server|client)/.*\.(c|h|cu)$", file):
            continue
        text = Path(file).read_text()
        for comment in TOKENS.finditer(text):
            for name in NAMES.finditer(comment[1] or ""):
                if name[0] not in ends:
                    line = text.count("\n", 0, comment.start() + name.start()) + 1
                    found.append(f"{file}:{line} names {name[0]}, which is not there")
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


sys.exit(main())

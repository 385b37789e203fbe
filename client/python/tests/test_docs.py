# SPDX-License-Identifier: Apache-2.0
"""What the pages about Python show is so: their blocks are run, a page from its beginning to its end, over a node of
its own. Blocks without ">>>" have one statement a line. What follows "```python needs=torch" is left out where there
is no torch, "needs=gpu" where torch sees no GPU."""
from __future__ import annotations

import doctest
import importlib.util
import os
import re
import unittest
from pathlib import Path
from typing import Iterator, List, Match

from store import Store

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```python(?: needs=(\w+))?\n(.*?)^```$", re.M | re.S)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def here(block: Match[str]) -> bool:
    if block[1] == "gpu":
        if importlib.util.find_spec("torch") is None:
            return False
        import torch

        return bool(torch.cuda.is_available())
    return block[1] is None or importlib.util.find_spec(block[1]) is not None


def only_code(page: str) -> str:
    """The page's blocks at the lines where they are, and nothing else."""
    lines = [""] * (page.count("\n") + 1)
    for block in filter(here, BLOCK.finditer(page)):
        first = page.count("\n", 0, block.start(2))
        code = [line if ">>>" in block[2] else ">>> " + line for line in block[2].splitlines()]
        lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


def pages() -> Iterator[Path]:
    yield from (ROOT / "docs" / "python.md", ROOT / "client" / "python" / "tutorial.md", ROOT / "README.md")


class Pages(unittest.TestCase):
    def run_page(self, path: Path) -> None:
        test = doctest.DocTestParser().get_doctest(only_code(path.read_text()), {}, path.name, str(path), 0)
        self.assertGreater(len(test.examples), 0, "nothing is shown")
        said: List[str] = []
        with Store() as store:
            before = os.environ.get("TARN_REDIS")
            os.environ["TARN_REDIS"] = store.uri
            try:
                runner = doctest.DocTestRunner(optionflags=FLAGS)
                failed = runner.run(test, out=said.append).failed
            finally:
                os.environ.pop("TARN_REDIS") if before is None else os.environ.update(TARN_REDIS=before)
        self.assertEqual(failed, 0, "".join(said))

    def test_pages(self) -> None:
        if importlib.util.find_spec("numpy") is None:
            self.skipTest("numpy: not installed")
        for path in pages():
            with self.subTest(page=path.name):
                self.run_page(path)


if __name__ == "__main__":
    unittest.main()

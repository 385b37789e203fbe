# SPDX-License-Identifier: Apache-2.0
"""Runs unittest files and says what came of them in the words that tests/run.sh counts.

    python3 tests/unittests.py FILE...     UNITTESTS='WORD WORD': only tests whose name has one

A skip's reason is "<what>: <why>"; where REQUIRE names <what> it is a failure.
"""

import os
import signal
import sys
import time
import unittest
from pathlib import Path
from typing import Set


class Result(unittest.TextTestResult):
    """Counts those that passed (subtests and skipped classes make a difference of the counts wrong)."""

    passed = 0

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed += 1

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.begun = time.monotonic()

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        took = time.monotonic() - self.begun
        if took > 10:
            self.stream.writeln("    took %.0f s" % took)


def required() -> Set[str]:
    return set(filter(None, os.environ.get("REQUIRE", "").split(",")))


def main() -> int:
    # A shell starts what it runs in the background with SIGINT ignored, and so would all children be.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = unittest.TestLoader()
    words = os.environ.get("UNITTESTS", "").split()
    loader.testNamePatterns = ["*%s*" % word for word in words] or None
    all_tests = unittest.TestSuite()
    for path in map(Path, sys.argv[1:]):
        sys.path.insert(0, str(path.parent))
        all_tests.addTests(loader.loadTestsFromName(path.stem))
    done = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(all_tests)
    must = required()
    wrong_skips = [s for s in done.skipped if "all" in must or s[1].split(":")[0] in must]
    bad = len(done.failures) + len(done.errors) + len(done.unexpectedSuccesses) + len(wrong_skips)
    # tests/run.sh shows each line "[  FAILED  ]" and the two lines before it.
    for test, trace in done.failures + done.errors:
        print("\n".join(trace.rstrip().splitlines()[-3:]) + "\n[  FAILED  ] %s" % test)
    for test, why in done.skipped:
        print(("SKIPPED, THOUGH REQUIRED: %s: " % test if (test, why) in wrong_skips else "skip: ") + why)
    print("[  PASSED  ] %d test(s)." % done.passed)
    print("[  FAILED  ] %d test(s)." % bad)
    print("[  SKIPPED ] %d test(s)." % (len(done.skipped) - len(wrong_skips)))
    return 1 if bad or not done.passed + len(done.skipped) else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""One process sends NumPy arrays, another receives them.

An array of a few numbers, one of 8 MB by asyncio, one that is not contiguous, and three in one message.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Sequence

import numpy as np
import tarn

from two_processes import run


def images() -> np.ndarray:
    return np.arange(2_000_000, dtype=np.float32).reshape(1000, 2000)


def send(c: tarn.Client, channel: tarn.Channel) -> None:
    channel.send(np.array([1.0, 2.0, 3.0, 4.0, 5.0], dtype=np.float32))
    asyncio.run(channel.asend(images(), tag=1))
    every_other = channel.submit_send(images()[::2], tag=2)  # returns at once; any strides will do
    print(f"sent: {'already' if every_other.done else 'not yet'}", flush=True)
    every_other.wait()
    channel.send([np.ones(512, np.float32), np.ones(1024, np.float32), np.ones(256, np.float32)], tag=3)


def receive(c: tarn.Client, channel: tarn.Channel) -> None:
    few = np.zeros(8, dtype=np.float32)
    nbytes = channel.recv_into(few)  # up to 4 KiB: into any memory
    print(f"received {nbytes} bytes: {few[: nbytes // 4].tolist()}")

    # More than 4 KiB: into a window, which processes of this host map if it has WindowMemory.
    room = np.frombuffer(tarn.WindowMemory(images().nbytes), np.float32).reshape(1000, 2000)
    with c.window(room):
        nbytes = asyncio.run(channel.arecv_into(room, tag=1))
        assert np.array_equal(room, images())
        print(f"received {nbytes} bytes of images")
        nbytes = channel.recv_into(room[:500], tag=2)
        assert np.array_equal(room[:500], images()[::2])
        print(f"received {nbytes} bytes of every other image")

    several = channel.recv(tag=3, nbytes=[4096, 4096, 4096])  # into new memory, of at most so many bytes
    arrays = [np.frombuffer(part, np.float32) for part in several]
    assert all((array == 1).all() for array in arrays)
    print(f"received sizes: {[array.nbytes for array in arrays]}")


def main(argv: Sequence[str] | None = None) -> int:
    return run(__doc__, send, receive, argv)


if __name__ == "__main__":
    sys.exit(main())

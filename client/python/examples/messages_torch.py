# SPDX-License-Identifier: Apache-2.0
"""One process sends torch tensors, another receives them: a tensor, one that is not contiguous, and three in
one message."""

from __future__ import annotations

import sys
from typing import Sequence

import tarn
import torch

from two_processes import run

SIZES = [512, 1024, 256]


def square_of() -> torch.Tensor:
    """1000 x 1000 small numbers, which bfloat16 holds exactly, transposed: any strides are sent."""
    return torch.arange(1_000_000).remainder(251).to(torch.bfloat16).reshape(1000, 1000).t()


def send(c: tarn.Client, channel: tarn.Channel) -> None:
    channel.send(torch.ones(1024, dtype=torch.float32))
    channel.send(square_of(), tag=1)
    channel.send([torch.full((n,), float(n)) for n in SIZES], tag=2)


def receive(c: tarn.Client, channel: tarn.Channel) -> None:
    tensor = torch.zeros(1024, dtype=torch.float32)
    nbytes = channel.recv_into(tensor)  # up to 4 KiB: into any memory
    assert nbytes == tensor.numel() * 4 and bool((tensor == 1).all())
    print(f"received {nbytes} bytes")

    # More than 4 KiB: into a window, which processes of this host map if it has WindowMemory.
    room = torch.frombuffer(tarn.WindowMemory(2_000_000), dtype=torch.uint8)
    with c.window(room):
        square = room.view(torch.bfloat16).reshape(1000, 1000)
        nbytes = channel.recv_into(square, tag=1)
        assert torch.equal(square, square_of())
        print(f"received {nbytes} bytes of a transposed tensor")
        tensors = list(room[: 4 * sum(SIZES)].view(torch.float32).split(SIZES))
        sizes = channel.recv_into(tensors, tag=2)
        assert all(bool((t == n).all()) for t, n in zip(tensors, SIZES))
        print(f"received sizes: {sizes}")


def main(argv: Sequence[str] | None = None) -> int:
    return run(__doc__, send, receive, argv)


if __name__ == "__main__":
    sys.exit(main())

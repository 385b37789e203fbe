# SPDX-License-Identifier: Apache-2.0
"""Two processes with a channel between them, for the examples of messages."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from contextlib import ExitStack
from typing import Callable, Sequence

import tarn

from local_nodes import local_nodes

End = Callable[[tarn.Client, tarn.Channel], None]


def _connect(redis: str, address: str, gpu: int, send: End) -> None:
    with tarn.Client(redis) as c, c.connect(address, hello=str(gpu).encode(), timeout=30) as channel:
        send(c, channel)


def run(doc: str, send: End, receive: End, argv: Sequence[str] | None = None) -> int:
    """receive() here, and send() in another process, which tells the number of its GPU when it connects. Returns the
    exit status for both."""
    p = argparse.ArgumentParser(description=doc.split("\n\n")[0])
    p.add_argument("--redis", help="directory of running nodes; without it a node is started")
    p.add_argument("--gpu", type=int, default=0, help="the number that the sender tells")
    o = p.parse_args(argv)
    with ExitStack() as stack:
        redis = o.redis or stack.enter_context(local_nodes({"messages": ["cpu0:bytes=16M"]}))
        c = stack.enter_context(tarn.Client(redis))
        listener = c.listen()
        spawn = multiprocessing.get_context("spawn")  # a child of fork() could not use an open client
        sender = spawn.Process(target=_connect, args=(redis, listener.address, o.gpu, send))
        sender.start()
        stack.callback(sender.terminate)  # where this process fails
        with listener.accept(timeout=30) as channel:
            peer = channel.peer
            print(f"connected to {peer.ip}, GPU {int(peer.hello)}, client {peer.id:016x}", flush=True)
            receive(c, channel)
        sender.join()
        if sender.exitcode:
            print(f"the sender has ended with {sender.exitcode}", file=sys.stderr)
        return 1 if sender.exitcode else 0

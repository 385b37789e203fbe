# SPDX-License-Identifier: Apache-2.0
"""What type checkers are to make of the package: tests/integration/test_python_types.sh runs them over this. A
"type: ignore" marks what they must refuse; they say so where it is not needed."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional

import tarn

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, numpy.dtype[Any]]


def gets(c: tarn.Client) -> None:
    array: Array = c.get("k")
    same: Array = c["k"]
    raw: bytearray = c.get("k", out="bytes")
    arrays: List[Optional[Array]] = c.get_many(["k"])
    raws: List[Optional[bytearray]] = c.get_many(["k"], out="bytes", hits=c.lookup(["k"]))
    lies: Array = c.view("k")
    seen: memoryview = c.view("k", out="bytes")
    there: bool = "k" in c
    one: bool = c.exists("k")
    several: List[bool] = c.exists([b"k", "l"])
    print(array, same, raw, arrays, raws, lies, seen, there, one, several)


def puts(c: tarn.Client) -> None:
    c.put("k", b"1", dtype="u8", shape=(1,), ttl=5, place="local")
    c.put({"k": b"1"}, replace=True)
    codes: List[int] = c.put_many({"k": b"1"})
    with c.put_session({"k": ("u8", (1,))}) as s:
        s.write("k", b"1")
    print(codes)


def tables(c: tarn.Client, rows: Any, out: Any) -> None:
    with c.table(4, device=0) as t, tarn.Table(c.lookup(["k"]), 0, timeout=1) as of_hits:
        codes: List[int] = t.set(["k"], 1, hits=c.lookup(["k"]))
        status = of_hits.gather(rows, out, offset=16, row_bytes=576, rows_per_page=64)
        t.gather(rows, out, status=status, stream=1)
        print(codes, t.npages, t.device, t.closed, c.lookup(["k"]).keys)


async def awaited(uri: str) -> None:
    async with tarn.Client(uri) as c:
        await c.aput({"k": b"1"})
        raw: bytearray = await c.aget("k", out="bytes")
        array: Array = await c.aget("k")
        found: bool = await c.aexists("k")
        print(raw, array, found)


def lends(c: tarn.Client, peer: tarn.Client) -> None:
    memory = tarn.WindowMemory(1 << 20, huge=False)
    with c.window(memory) as w, w.lease([(0, 100)], write=True, ttl=5) as lease:
        name: str = lease.descriptor
        r: tarn.Reach = peer.reach(name, timeout=2)
        r.write(b"1", notify=(1, b"data"))
        r.read([(0, bytearray(1))])
        codes: List[int] = r.submit_write(b"1", 8, notify=(1, b"")).wait()
        n: tarn.Notification = w.notification(timeout=1)
        tags: List[int] = [more.tag for more in w]
        lease.expect(1, n=2, timeout=1)
        same: tarn.Lease = n.lease
        print(codes, tags, same, r.nbytes, w.nbytes, w.notification_fd, n.data, n.peer)


def messages(c: tarn.Client, peer: tarn.Client) -> None:
    listener: tarn.Listener = c.listen()
    with peer.connect(listener.address, hello=b"gpu 0", timeout=2) as sender, listener.accept(timeout=2) as receiver:
        ip: str = receiver.peer.ip
        op: tarn.Operation = sender.submit_send(b"1", 7, timeout=2)
        one: memoryview = receiver.recv(7)
        several: List[memoryview] = receiver.recv(7, [4, 4])
        sender.send([b"1", b"2"], tag=7)
        room = bytearray(8)
        n = receiver.recv_into(room, 7, timeout=2)
        print(ip, op.done, one, several, n, receiver.submit_recv_into([room], 7), receiver.closed, listener.path)


async def heard(listener: tarn.Listener, lease: tarn.Lease) -> None:
    channel: tarn.Channel = await listener.aaccept(2)
    await channel.asend(b"1", 7)
    one: memoryview = await channel.arecv(7)
    several: List[memoryview] = await channel.arecv(7, [4, 4])
    await lease.aexpect(1, n=2, timeout=1)
    print(one, several, await channel.arecv_into(bytearray(8)))


async def connected(c: tarn.Client) -> tarn.Channel:
    return await c.aconnect("host:1", hello=b"1", timeout=2)


async def reached(c: tarn.Client) -> tarn.Reach:
    return await c.areach("name", timeout=2)


async def moved(r: tarn.Reach) -> None:
    await r.awrite(b"1", notify=(1, b""))
    await r.aread(bytearray(1), 0)


def failures(c: tarn.Client) -> None:
    try:
        c.put("k", b"1")
    except tarn.Error as e:
        remedy: str = e.remedy
        peer: Optional[str] = e.peer
        print(remedy, peer)


def refused(c: tarn.Client) -> None:
    c.get(5)  # type: ignore[call-overload]
    c.get("k", out="list")  # type: ignore[call-overload]
    c.put("k", b"1", timeout="5")  # type: ignore[call-overload]
    c.lookup(5)  # type: ignore[arg-type]
    c.nodes(timeout="5")  # type: ignore[arg-type]
    c.reach(b"k")  # type: ignore[arg-type]
    c.window(bytearray(1)).lease(ttl="5")  # type: ignore[arg-type]
    c.connect(7700)  # type: ignore[arg-type]
    c.connect("host:1").send(b"1", "7")  # type: ignore[arg-type]
    wrong: bytearray = c.get("k")  # type: ignore[assignment]
    print(wrong)

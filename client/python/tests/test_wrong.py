# SPDX-License-Identifier: Apache-2.0
"""Wrong uses: each gives one sentence of object, cause and remedy, in this order."""
from __future__ import annotations

import array
import asyncio
import contextlib
import copy
import math
import mmap
import os
import pickle
import sys
import unittest
from typing import Any, Callable, Iterator, List, NamedTuple, Type
from unittest import mock

import tarn
from store import StoreCase
from tarn import _arrays

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


class Row(NamedTuple):
    call: Callable[[Any], Any]  # of the test case: .client, .key(), "eight" has eight bytes
    error: Type[BaseException]
    object: str
    cause: str
    remedy: str


def put(value: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda t: t.client.put(t.key("put"), value, **options)


def get(**options: Any) -> Callable[[Any], Any]:
    return lambda t: t.client.get("eight", **{"out": "bytes", **options})


def into(value: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda t: t.client.get_into("eight", value, **options)


def opened(**options: Any) -> Callable[[Any], Any]:
    return lambda t: t.open(**options)


def at(uri: Any) -> Callable[[Any], Any]:
    return lambda t: tarn.Client(uri, timeout=2)


def written(*arguments: Any, **options: Any) -> Callable[[Any], Any]:
    def call(t: Any) -> None:
        with t.client.put_session({t.key("session"): ("f32", (4,))}, replace=True) as s:
            s.write(*arguments, **options)
    return call


def closed(call: Callable[[tarn.Client], Any]) -> Callable[[Any], Any]:
    def use(t: Any) -> Any:
        client = t.open()
        client.close()
        return call(client)
    return use


def read_only() -> mmap.mmap:
    return mmap.mmap(-1, 8, prot=mmap.PROT_READ)


ARGUMENTS = [
    Row(put(b"1", timeout="5"), TypeError, "timeout", "of type str", "give a number of seconds"),
    Row(put(b"1", timeout=[1]), TypeError, "timeout", "of type list", "give a number of seconds"),
    Row(put(b"1", timeout=-1), tarn.Invalid, "timeout", "-1 seconds", "give more than 0"),
    Row(put(b"1", timeout=0), tarn.Invalid, "timeout", "0 seconds", "give more than 0"),
    Row(put(b"1", timeout=math.nan), tarn.Invalid, "timeout", "nan seconds", "give more than 0"),
    Row(put(b"1", timeout=math.inf), tarn.Invalid, "timeout", "inf seconds", "and at most 4e+06"),
    Row(put(b"1", timeout=10**400), tarn.Invalid, "timeout", "out of range", "at most 4e6 seconds"),
    Row(get(timeout="5"), TypeError, "timeout", "of type str", "give a number of seconds"),
    Row(get(timeout=-1), tarn.Invalid, "timeout", "-1 seconds", "give more than 0"),
    Row(lambda t: asyncio.run(t.client.aget("eight", out="bytes", timeout="5")), TypeError, "timeout", "of type str",
        "give a number of seconds"),
    Row(lambda t: list(t.client.events("5")), TypeError, "timeout", "of type str", "give a number of seconds"),
    Row(lambda t: list(t.client.events(-1)), tarn.Invalid, "timeout", "-1 seconds", "give more than 0"),
    Row(lambda t: t.client.nodes(timeout=math.nan), tarn.Invalid, "timeout", "nan seconds", "give more than 0"),
    Row(lambda t: t.client.submit_put({t.key(): b"1"}).wait("5"), TypeError, "timeout", "of type str", "give a number"),
    Row(put(b"1", ttl="5"), TypeError, "ttl", "of type str", "give a number of seconds"),
    Row(lambda t: t.client.pin("eight", ttl=-1), tarn.Invalid, "ttl", "-1 seconds", "give more than 0"),
    Row(put(b"1", chain=1.5), TypeError, "chain", "of type float", "give True or False"),
    Row(put(b"1", chain=""), tarn.Invalid, "key", "0 bytes long", "give it 1 to"),
    Row(put(b"1", replicas="2"), TypeError, "replicas", "of type str", "give a whole number"),
    Row(put(b"1", replicas=0), tarn.Invalid, "replicas", "0", "give 1 to 8"),
    Row(put(b"1", replicas=10**30), tarn.Invalid, "replicas", "out of range", "give 1 to 8"),
    Row(put(b"1", replicas=2), tarn.NodeDown, "put", "2 replicas asked for", "start more nodes or ask for fewer"),
    Row(put(b"1", place="nowhere"), tarn.NodeDown, "place 'nowhere'", "no such node or pool",
        "give local, or a NODE or NODE/POOL that `tarn info` lists"),
    Row(put(b"1", place="node0/none"), tarn.NodeDown, "place 'node0/none'", "no such node or pool", "give local"),
    Row(put(b"1", place=""), tarn.Invalid, "place ''", "names no node", "give local, NODE or NODE/POOL"),
    Row(put(b"1", place="x" * 5000), tarn.Invalid, "place 'xxx", "names no node", "give local, NODE or NODE/POOL"),
    Row(put(b"1", place=5), TypeError, "place", "of type int", "give a str"),
    Row(put(b"1", place="a\0b"), tarn.Invalid, "place", "NUL", "give text without it"),
    Row(put(b"1", place="\ud800"), tarn.Invalid, "place", "surrogates", "give text without them"),
    Row(put(b"1", replace="no"), TypeError, "replace", "of type str", "give True or False"),
    Row(put(b"1", nonsense=1), TypeError, "put()", "'nonsense' is no argument", "use key, value, dtype"),
    Row(lambda t: t.client.put("k", b"1", "f4"), TypeError, "put()", "3 arguments without a name", "name the others"),
    Row(lambda t: t.client.put("k", b"1", key="k"), TypeError, "put()", "key is given twice", "give it once"),
    Row(lambda t: t.client.put("k"), TypeError, "put()", "a key without a value", "give both"),
    Row(lambda t: asyncio.run(t.client.aput("k")), TypeError, "put()", "a key without a value", "give both"),
    Row(lambda t: t.client.put({"k": b"1"}, dtype="u8"), tarn.Invalid, "put", "of one value", "put these one by one"),
    Row(lambda t: t.client.match_prefix(["a"], stride=0), tarn.Invalid, "stride", "0", "give 1 to"),
    Row(lambda t: t.client.list("a\0"), tarn.Invalid, "match", "NUL", "give text without it"),
    Row(get(out="list"), tarn.Invalid, "out='list'", "nothing can be made so", "give 'numpy', 'torch' or 'bytes'"),
    Row(lambda t: t.client.view("eight", out=5), TypeError, "out", "of type int", "give 'numpy'"),
    Row(lambda t: t.client.get_many(["k"], out="bytes", hits=[1]), TypeError, "hits", "of type list",
        "give the Hits of lookup()"),
    Row(lambda t: t.client.lookup(["k"])[5], IndexError, "hits", "5 is no index of 1", "count from 0"),
    Row(into(bytearray(1), offset=-1), tarn.Invalid, "offset", "out of range", "give one from 0"),
    Row(into(bytearray(1), offset="1"), TypeError, "offset", "of type str", "give a whole number"),
    Row(into(bytearray(1), offset=100), tarn.SizeMismatch, "key 'eight'", "reach past the object's 8", "ask for less"),
    Row(lambda t: t.client.submit_put({"k": b"1"}, after=1.5), TypeError, "after", "of type float",
        "give a torch.cuda.Event"),
    Row(lambda t: t.client.submit_put({"k": b"1"}, after=0), tarn.Invalid, "after", "never recorded", "record it"),
    Row(lambda t: t.client.load({}, chunk=0), tarn.Invalid, "load: chunk=0", "no number of objects", "give 1 or more"),
    Row(lambda t: t.client.save([("k", b"1")]), TypeError, "save: values", "of type list", "give a mapping"),
]

KEYS = [
    Row(lambda t: t.client.put("", b"1"), tarn.Invalid, "key", "0 bytes long", "give it 1 to 1024"),
    Row(lambda t: t.client.put("x" * 1025, b"1"), tarn.Invalid, "key", "1025 bytes long", "give it 1 to 1024"),
    Row(lambda t: t.client.put(5, b"1"), TypeError, "key", "of type int", "give bytes or a str"),
    Row(lambda t: t.client.put(None, b"1"), TypeError, "key", "of type NoneType", "give bytes or a str"),
    Row(lambda t: t.client.put("\ud800", b"1"), tarn.Invalid, "key", "surrogates", "give text without them"),
    Row(lambda t: t.client.get(["k"], out="bytes"), TypeError, "key", "of type list", "give bytes or a str"),
    Row(lambda t: 5 in t.client, TypeError, "key", "of type int", "give bytes or a str"),
    Row(lambda t: t.client.get(5, out="bytes"), TypeError, "key", "of type int", "give bytes or a str"),
    Row(lambda t: t.client.get_many("abc", out="bytes"), TypeError, "keys", "of type str", "call get() for one"),
    Row(lambda t: t.client.get_many(5, out="bytes"), TypeError, "keys", "of type int", "give a list of keys"),
    Row(lambda t: t.client.lookup("abc"), TypeError, "keys", "of type str", "give a list of keys"),
    Row(lambda t: t.client.exists(5), TypeError, "keys", "of type int", "give a list of keys"),
    Row(lambda t: t.client.put_many("abc"), TypeError, "pairs", "of type str", "give a mapping"),
    Row(lambda t: t.client.put_many(["ab"]), TypeError, "pairs: an element", "of type str", "give (key, value)"),
    Row(lambda t: t.client.put_many([("a", b"1", 2)]), tarn.Invalid, "pairs", "element 0 has 3 parts", "give (key,"),
    Row(lambda t: t.client.get("none", out="bytes"), tarn.NotFound, "get key 'none'", "no such key", "put it first"),
    Row(lambda t: t.client.stat("none"), tarn.NotFound, "key 'none'", "no such key", "put it first"),
    Row(lambda t: t.client.view("none", out="bytes"), tarn.NotFound, "key 'none'", "no such key", "put it first"),
    Row(lambda t: t.client.put("eight", b"2"), tarn.Exists, "put key 'eight'", "is held here already", "replace=True"),
    Row(lambda t: t.client.put({"new": b"", "eight": b"2"}, replace=False), tarn.Exists, "put key 'eight'", "held here",
        "put with replace=True"),
]

VALUES = [
    Row(put("text"), TypeError, "value", "of type str", "value.encode()"),
    Row(put(1.5), TypeError, "value", "of type float", "give an array, as numpy.array(value)"),
    Row(put([b"1", 2]), TypeError, "value", "of type int", "give an array"),
    Row(put(None), TypeError, "value", "of type NoneType", "give a buffer, an array"),
    Row(put({"a": b"1"}), TypeError, "value", "of type dict", "by put_many(value)"),
    Row(put(range(3)), TypeError, "value", "of type range", "give a buffer, an array"),
    Row(put(bytearray(65 << 20)), tarn.TooLarge, "put key", "do not fit into any pool", "put it in parts"),
    Row(put(array.array("u", "abc")), tarn.Unsupported, "value", "elements of format", "give the bytes"),
    Row(put(bytes(16), dtype="f33"), tarn.Unsupported, "dtype 'f33'", "no element type", "give one of tarn.dtypes"),
    Row(put(bytes(16), dtype=5), TypeError, "dtype", "of type int", "give one of tarn.dtypes"),
    Row(put(bytes(16), dtype="a\nb"), tarn.Unsupported, "dtype 'a\\nb'", "no element type", "give one of tarn.dtypes"),
    Row(put(bytes(16), dtype=int), tarn.Unsupported, "dtype 'int'", "no element type", "give one of tarn.dtypes"),
    Row(put(bytes(16), shape=(3,)), tarn.Invalid, "shape [3]", "takes 3 bytes, but bytes is 16", "make them agree"),
    Row(put(bytes(16), shape=3), TypeError, "shape", "of type int", "give the length of each dimension"),
    Row(put(bytes(16), shape="3"), TypeError, "shape", "of type str", "give the length of each dimension"),
    Row(put(bytes(16), shape=(1.5,)), TypeError, "shape: a length", "of type float", "give a whole number"),
    Row(put(bytes(16), shape=(-1,)), tarn.Invalid, "shape", "out of range", "give one from 0"),
    Row(put(bytes(16), shape=(1 << 62, 4)), tarn.Invalid, "shape", "more than 2^64 bytes", "give a smaller one"),
    Row(put(bytes(16), shape=(1,) * 9), tarn.Invalid, "shape", "9 dimensions", "give at most 8"),
    Row(into(b"12345678"), tarn.Invalid, "value", "not writable", "give one that can be written to"),
    Row(into(read_only()), tarn.Invalid, "value", "not writable", "give one that can be written to"),
    Row(into(5), TypeError, "value", "of type int", "give memory to write to"),
    Row(into(bytearray(7)), tarn.SizeMismatch, "key 'eight'", "has 8 bytes, the pieces 7", "size them alike"),
    Row(into(array.array("d", [0])), tarn.TensorMismatch, "get", "the object is u8 [8], the buffer f64 [1]",
        "give one"),
    Row(lambda t: t.client.get_into_many(["k", "l"], [bytearray(1)]), tarn.Invalid, "values", "1 for 2 keys",
        "give as"),
    Row(lambda t: t.client.get_into_many(["k"], bytearray(8)), tarn.Invalid, "values", "8 rows for 1 keys",
        "give a row"),
    Row(lambda t: tarn.Piece("a", 1), TypeError, "addr", "of type str", "give a whole number"),
    Row(lambda t: tarn.Piece(1, 8, 4, 2), tarn.Invalid, "Piece", "2 runs of 8 bytes, 4 apart", "give at least one"),
    Row(lambda t: put(tarn.Piece(0, 8))(t), tarn.Invalid, "Piece", "address 0 is no memory", "give the address"),
    Row(lambda t: t.client.register((0, 100)), tarn.Invalid, "Piece", "address 0 is no memory", "give the address"),
    Row(lambda t: t.client.register(bytearray()), tarn.Invalid, "register", "0 bytes", "give an address"),
]

CLIENTS = [
    Row(opened(timeout="5"), TypeError, "timeout", "of type str", "give a number of seconds"),
    Row(opened(ns="a b"), tarn.ConfigError, "namespace 'a b'", "not a name", "use 1 to 63 of"),
    Row(opened(ns=5), TypeError, "ns", "of type int", "give a str"),
    Row(opened(transports="nonsense"), tarn.ConfigError, 'transport "nonsense"', "none of this name",
        "name one of shm"),
    Row(opened(transports=["tcp"]), TypeError, "transports", "of type list", "give a str"),
    Row(opened(workers=-1), tarn.Invalid, "workers", "-1", "give 0 to 1024"),
    Row(opened(log="x"), TypeError, "log", "of type str", "give a logging.Logger"),
    Row(at("redis://127.0.0.1:1"), tarn.DirectoryError, "redis://127.0.0.1:1", "Connection refused",
        "start Redis there"),
    Row(at("http://x"), tarn.ConfigError, "redis uri", "the scheme 'http'", "use redis://"),
    Row(at("127.0.0.1:6379"), tarn.ConfigError, "redis uri", "the scheme ''", "use redis://"),
    Row(at(b"redis://x"), TypeError, "uri", "of type bytes", "give a str"),
    Row(lambda t: tarn.Client(t.store.uri + "/99"), tarn.DirectoryError, "redis at", "out of range",
        "correct the database"),
    Row(lambda t: t.open(ns="nobody").put("k", b"1"), tarn.NodeDown, "no node", "namespace of directory",
        "start tarnd with this"),
    Row(closed(lambda c: c.put("k", b"1")), tarn.Closed, "client", "was closed", "open another one"),
    Row(closed(lambda c: "k" in c), tarn.Closed, "client", "was closed", "open another one"),
    Row(closed(lambda c: asyncio.run(c.aget("k", out="bytes"))), tarn.Closed, "client", "was closed",
        "open another one"),
    Row(closed(lambda c: c.put_session({"k": ("u8", (1,))})), tarn.Closed, "client", "was closed", "open another one"),
    Row(closed(lambda c: list(c.events(1))), tarn.Closed, "client", "was closed", "open another one"),
    Row(lambda t: tarn.Client.__new__(tarn.Client).get("k", out="bytes"), tarn.Closed, "client", "is not open",
        "call "),
    Row(lambda t: t.client.__init__(t.store.uri), tarn.Invalid, "client", "is open already", "make a new Client"),
    Row(lambda t: pickle.dumps(t.client), TypeError, "Client", "cannot be pickled", "make one in each process"),
    Row(lambda t: copy.deepcopy(t.client), TypeError, "Client", "cannot be pickled or copied", "make one in each"),
    Row(lambda t: pickle.dumps(t.client.lookup(["k"])), TypeError, "Hits", "cannot be pickled", "make one in each"),
    Row(lambda t: t.client.put_session({}), tarn.Invalid, "put session", "no items", "give at least one"),
    Row(lambda t: t.client.put_session({"s": 5}), TypeError, "specs", "of type int", "give (dtype, shape)"),
    Row(lambda t: t.client.put_session({"s": ("f33", (1,))}), tarn.Unsupported, "dtype 'f33'", "no element type",
        "give"),
    Row(written("none", b""), tarn.NotFound, "put session", "no object of it has this key", "give one of specs"),
    Row(written(7, b""), IndexError, "put session", "7 is no index of 1", "count from 0"),
    Row(written(0, bytes(20)), tarn.SizeMismatch, "put session", "reach past the tensor's 16", "write less"),
    Row(written(0, bytes(4)), tarn.Invalid, "put session", "4 of its 16 bytes were written", "write all of each"),
    Row(written(0, array.array("d", [1])), tarn.TensorMismatch, "put session", "is f32, the value f64", "convert it"),
]


def numpy_rows() -> Iterator[Row]:
    unsupported = [(np.array([None, 1]), "dtype object", "value.astype('f4')"),
                   (np.zeros(2, "M8[s]"), "dtype datetime64", "value.view('i8')"),
                   (np.zeros(2, "S3"), "dtype bytes24", "value.view('u1')"),
                   (np.zeros(2, [("a", "i4")]), "dtype void32", "give each field a key of its own"),
                   (np.zeros(2, np.longdouble), "dtype float128", "value.astype('f8')")]
    for value, name, remedy in unsupported:
        yield Row(put(value), tarn.Unsupported, name, "no such element type", remedy)
    masked = np.ma.masked_array([1.0, 2.0], [0, 1])
    yield Row(put(masked), tarn.Unsupported, "value", "a masked array", "give value.filled()")
    yield Row(into(masked), tarn.Unsupported, "value", "a masked array", "give value.data")
    yield Row(put(np.zeros(2, ">f4")), tarn.Unsupported, "dtype", "byte order", "newbyteorder('=')")
    yield Row(put(np.zeros((1,) * 9)), tarn.Unsupported, "value", "9 dimensions", "reshape it")
    yield Row(put([1.0, 2.0]), TypeError, "value", "of type float", "numpy.array(value)")
    fixed = np.zeros(8, "u1")
    fixed.flags.writeable = False
    yield Row(into(fixed), tarn.Invalid, "value", "read-only", "give one that can be written to")
    yield Row(into(np.broadcast_to(fixed[:1], 8)), tarn.Invalid, "value", "read-only", "give one that can be")
    yield Row(into(np.zeros((2, 4), "u1")), tarn.TensorMismatch, "get", "the buffer u8 [2, 4]", "give one of that")
    yield Row(put(np.zeros((3000, 3000, 2), "u1")[:, :, 0].T[::-1, ::-1]), tarn.Unsupported, "value",
              "its strides make", "make it contiguous")


def torch_rows() -> Iterator[Row]:
    for name in ("int4", "uint2"):
        if hasattr(torch, name):
            yield Row(put(torch.empty(4, dtype=getattr(torch, name))), tarn.Unsupported, "dtype torch." + name,
                      "no such element type", "give its bytes")
    for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
        if hasattr(torch, name):
            yield Row(put(torch.zeros(4, dtype=torch.uint8).view(getattr(torch, name))), tarn.Unsupported,
                      "dtype torch." + name, "no such element type", "value.view(torch.uint8)")
    yield Row(put(torch.zeros(4, dtype=torch.complex32)), tarn.Unsupported, "dtype torch.complex32",
              "no such element type", "value.to(torch.complex64)")
    yield Row(put(torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8)), tarn.Unsupported,
              "dtype torch.qint8", "no such element type", "value.int_repr()")
    yield Row(put(torch.zeros(3, device="meta")), tarn.Unsupported, "value", "on device 'meta'", "move it to the CPU")
    yield Row(put(torch.eye(3).to_sparse()), tarn.Unsupported, "value", "without memory of its own", "give a dense one")
    yield Row(put(torch.zeros(3, dtype=torch.complex64).conj()), tarn.Unsupported, "value", "conjugated",
              "resolve_conj()")
    yield Row(put(torch.nn.Linear(2, 2).state_dict()), TypeError, "value", "OrderedDict", "by put_many(value)")
    yield Row(get(device="nonsense"), tarn.Unavailable, "device='nonsense'", "torch refuses it", "give one that it has")


class Wrong(StoreCase):
    def setUp(self) -> None:
        super().setUp()
        self.client.put("eight", b"12345678", replace=True)

    def check(self, rows: List[Row]) -> None:
        for i, row in enumerate(rows):
            with self.subTest(row=i, object=row.object, cause=row.cause):
                with self.assertRaises(row.error) as raised:
                    row.call(self)
                self.check_sentence(row, raised.exception)

    def check_sentence(self, row: Row, e: BaseException) -> None:
        text = str(e)
        self.assertNotIn("\n", text)
        at = 0
        for words in (row.object, row.cause, row.remedy):
            self.assertIn(words, text[at:])
            at += text[at:].index(words) + len(words)
        if isinstance(e, tarn.Error):
            self.assertIn(row.remedy, e.remedy)
            self.assertTrue(text.endswith(": " + e.remedy), text)

    def test_arguments(self) -> None:
        self.check(ARGUMENTS)

    def test_keys(self) -> None:
        self.check(KEYS)

    def test_values(self) -> None:
        self.check(VALUES)

    def test_clients(self) -> None:
        self.check(CLIENTS)

    @unittest.skipIf(np is None, "numpy: not installed")
    def test_numpy(self) -> None:
        self.check(list(numpy_rows()))

    @unittest.skipIf(ml_dtypes is None, "ml_dtypes: not installed")
    def test_ml_dtypes(self) -> None:
        self.check([Row(put(np.zeros(4, ml_dtypes.float8_e4m3fnuz)), tarn.Unsupported, "dtype float8_e4m3fnuz",
                        "no such element type", "value.view('u1')")])

    @unittest.skipIf(torch is None, "torch: not installed")
    def test_torch(self) -> None:
        self.check(list(torch_rows()))

    def test_without_numpy_and_torch(self) -> None:
        with mock.patch.dict(sys.modules, {"numpy": None, "torch": None}), mock.patch.object(_arrays, "_numpy", None):
            self.check([
                Row(get(out="numpy"), tarn.Unsupported, "out='numpy'", "NumPy is not installed",
                    "install numpy, or get"),
                Row(get(out="torch"), tarn.Unsupported, "out='torch'", "torch is not installed",
                    "install torch, or get"),
                Row(lambda t: t.client["eight"], tarn.Unsupported, "out='numpy'", "NumPy is not installed", "install"),
            ])

    def test_forked(self) -> None:
        pid = os.fork()
        if pid == 0:
            ended = 1
            with contextlib.suppress(BaseException):
                self.check([Row(call, tarn.Forked, "client", "opened before fork()", "open another one in the child")
                            for call in (put(b"1"), get())])
                ended = 0
            os._exit(ended)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)


class Remedies(unittest.TestCase):
    def test_every_class_has_one(self) -> None:
        for code in tarn._tarn.errors:
            e = tarn.error_of(code, "k")
            self.assertTrue(str(e).endswith(": " + e.remedy), str(e))
            again = pickle.loads(pickle.dumps(e))
            self.assertEqual((str(again), again.remedy), (str(e), e.remedy))

    def test_a_cause_is_no_remedy(self) -> None:
        e = tarn.error_of(tarn.NodeDown.code, "k", "get key 'k': node n (1.2.3.4:5): the data connection broke")
        self.assertEqual(e.remedy, "look at the node, or start it again")
        self.assertEqual(str(e), "get key 'k': node n (1.2.3.4:5): the data connection broke: " + e.remedy)
        self.assertEqual(e.peer, "n")

    def test_the_sentence_has_its_own(self) -> None:
        for remedy in ("raise timeout or look at Redis", "is this a proxy?", "use redis://[user@]host"):
            self.assertEqual(tarn.error_of(tarn.Timeout.code, "k", "put: it took too long: " + remedy).remedy, remedy)

    def test_of_a_batch(self) -> None:
        first = tarn.error_of(tarn.Timeout.code, "k", "get key 'k': node n: the deadline has passed: raise timeout_ms")
        self.assertEqual(first.remedy, "raise timeout")
        e = tarn.BatchError(f"1 of 2 gets failed, the first: {first}", [None, None], {1: first})
        self.assertEqual((e.remedy, e.peer), ("raise timeout", "n"))


if __name__ == "__main__":
    unittest.main()

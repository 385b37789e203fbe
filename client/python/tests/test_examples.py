# SPDX-License-Identifier: Apache-2.0
"""The examples, small and on the CPU: with NumPy always, with torch and transformers where they are."""

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # small matrices: threads only wait for each other
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import numpy as np
import tarn

import bare_copies
import kv_offload
import pd_disagg
import replay
import sparse_attention
import two_processes
from kv_blocks import chain_keys, chain_root
from local_nodes import local_nodes
from tiny_numpy import TinyNumpyLM

MISSING = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
needs_torch = unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")


needs_torch_alone = unittest.skipIf("torch" in MISSING, "torch: not installed")


def needs_gpu(test):
    @needs_torch_alone
    @functools.wraps(test)
    def run(self):
        import torch

        if not torch.cuda.is_available():
            self.skipTest("torch sees no GPU")
        test(self)

    return run


class WithNodes(unittest.TestCase):
    """A node and a client for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        nodes = local_nodes({"examples": ["cpu0:bytes=64M", "other:bytes=16M"]})
        cls.redis = nodes.__enter__()
        cls.addClassCleanup(nodes.__exit__, None, None, None)
        cls.client = tarn.Client(cls.redis, timeout=20)
        cls.addClassCleanup(cls.client.close)


class Names(unittest.TestCase):
    def setUp(self):
        self.tokens = list(range(100))
        self.keys = chain_keys(chain_root("model", "f32", 16), self.tokens, 16)

    def test_full_blocks_have_a_key_each(self):
        self.assertEqual(len(self.keys), 6)
        self.assertEqual(len(set(self.keys)), 6)
        self.assertEqual(self.keys, chain_keys(chain_root("model", "f32", 16), np.arange(100), 16))

    def test_a_repeated_prefix_has_the_same_keys(self):
        other = chain_keys(chain_root("model", "f32", 16), self.tokens[:64] + [7] * 64, 16)
        self.assertEqual(other[:4], self.keys[:4])
        self.assertFalse(set(other[4:]) & set(self.keys))

    def test_a_changed_parent_gives_other_keys(self):
        changed = [1] + self.tokens[1:]  # the tokens of all blocks but the first are the same
        self.assertFalse(set(chain_keys(chain_root("model", "f32", 16), changed, 16)) & set(self.keys))

    def test_the_root_covers_model_dtype_rank_and_block(self):
        roots = [
            chain_root("model", "f32", 16),
            chain_root("model2", "f32", 16),
            chain_root("model", "bf16", 16),
            chain_root("model", "f32", 32),
            chain_root("model", "f32", 16, rank=0, ranks=2),
            chain_root("model", "f32", 16, rank=1, ranks=2),
        ]
        self.assertEqual(len({chain_keys(root, self.tokens, 16)[0] for root in roots}), len(roots))


class Pages(unittest.TestCase):
    """Pieces are where the array's own indexing says."""

    def setUp(self):
        self.kv = TinyNumpyLM().new_kv(8)
        self.kv.array[:] = np.random.default_rng(2).standard_normal(self.kv.array.shape)

    @staticmethod
    def bytes_of(pieces):
        return b"".join(
            ctypes.string_at(p.addr + i * p.stride, p.nbytes) for p in pieces for i in range(p.count)
        )

    def test_the_layout_has_all_blocks(self):
        run = self.kv.shape.run_bytes
        self.assertEqual((self.kv.layout.npages, self.kv.layout.page_bytes), (8, run))
        self.assertEqual(len(self.kv.layout.arrays) * run, self.kv.shape.block_bytes)

    def test_a_layer_of_a_table(self):
        for table in ([2, 3, 4], [5, 1, 2, 7], [0]):
            pieces = self.kv.layer_pieces(1, table)
            self.assertEqual(self.bytes_of(pieces), self.kv.array[1][:, table].tobytes())
        self.assertEqual(len(self.kv.layer_pieces(1, [5, 1, 2, 7])), 6)  # 1 and 2 are one

    def test_what_is_dropped_is_wiped_and_free(self):
        table = self.kv.take(5)
        self.kv.drop(table)
        self.assertFalse(self.kv.array[:, :, table].any())
        self.assertEqual(sorted(self.kv.take(8)), list(range(8)))
        with self.assertRaises(MemoryError):
            self.kv.take(1)


class OffloadSteps(WithNodes):
    """kv_offload's parts, where the whole goes another way than it should."""

    def setUp(self):
        self.lm = TinyNumpyLM()
        self.kv = self.lm.new_kv(32)
        self.store = kv_offload.BlockStore(self.client, self.kv, place="examples/cpu0")
        self.root = chain_root(self.lm.id, "f32", 16)
        self.prompt = kv_offload.make_prompt(self.lm, 16, 200, 40, 48, seed=3)
        self.keys = chain_keys(self.root, self.prompt.tokens[: self.prompt.prefix], 16)
        self.assertEqual(len(self.keys), 10)
        self.reference, _ = kv_offload.recompute(self.lm, self.kv, self.prompt, 1)
        kv_offload.offload(self.lm, self.store, self.keys, self.prompt)
        self.addCleanup(self.client.remove, self.keys)

    def reload(self):
        logits, table, row = kv_offload.reload(self.lm, self.store, self.root, self.prompt)
        self.kv.drop(table)
        return logits, row["hit_tokens"]

    def test_all_comes_back(self):
        logits, hit = self.reload()
        self.assertEqual(hit, 160)
        self.assertTrue(np.array_equal(logits, self.reference))

    def test_objects_have_the_blocks_dtype_and_shape(self):
        got = self.client.get(self.keys[3])
        self.assertEqual((got.dtype, got.shape), (np.float32, (8, 1, 16, 2, 16)))

    def test_a_miss_in_the_middle_ends_the_prefix(self):
        self.client.remove(self.keys[4:5])
        logits, hit = self.reload()
        self.assertEqual(hit, 64)  # blocks 5 to 9 are there, and of no use
        # Other chunks than before: equal but for rounding.
        np.testing.assert_allclose(logits, self.reference, atol=1e-3)

    def test_a_block_lost_after_the_look_up_ends_the_prefix(self):
        hits = self.store.match(self.keys)
        self.client.remove(self.keys[6:7])
        table = self.kv.take(10)
        self.assertEqual(self.store.load(self.keys, table, hits), 6)

    def test_another_prompt_finds_nothing(self):
        tokens = self.prompt.tokens.copy()
        tokens[0] += 1
        self.assertEqual(self.store.match(chain_keys(self.root, tokens[:160], 16)).pages, 0)

    def test_one_wrong_element_would_show(self):
        table = self.kv.take_for(200)
        self.store.load(self.keys, table, self.store.match(self.keys))
        self.kv.array[2, 0, table[0], 5] += 0.5
        logits = self.prompt.prefill(self.lm, self.kv, table, first=160)
        self.assertFalse(np.array_equal(logits, self.reference))

    def test_blocks_stored_meanwhile_are_no_error(self):
        kv_offload.offload(self.lm, self.store, self.keys, self.prompt)
        self.assertEqual(self.reload()[1], 160)


class Offload(unittest.TestCase):
    def measure(self, *flags):
        rows = list(kv_offload.measure(kv_offload.options(["--rounds=1", *flags])))
        for row in rows:  # logits are compared within
            self.assertTrue(row["logits_equal"])
            self.assertEqual(row["hit_tokens"], row["tokens"] - 64)
            self.assertLessEqual(row["one_pass_difference"], row["one_pass_bound"])
        return rows

    def test_numpy(self):
        rows = self.measure("--tokens=128,512", "--chunk=128")
        self.assertEqual([row["tokens"] for row in rows], [128, 512])

    def test_several_blocks_in_an_object(self):
        rows = self.measure("--tokens=256", "--chunk=64", "--span=1,4")
        self.assertEqual([row["span"] for row in rows], [1, 4])
        self.assertEqual([row["bytes"] for row in rows], [192 // 16 * 16384] * 2)

    def test_writes_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "rows"
            with contextlib.redirect_stdout(io.StringIO()) as said:
                self.assertEqual(kv_offload.main(["--rounds=1", "--tokens=96", f"--json={out}"]), 0)
            self.assertIn("logits equal bit for bit", said.getvalue())
            self.assertEqual(json.loads(out.read_text())["hit_tokens"], 32)

    @unittest.skipIf(importlib.util.find_spec("triton") is None, "not installed: triton")
    def test_the_kernel_that_loads_on_a_gpu_are_compared_with(self):
        import torch

        index = torch.tensor([6, 0, 3, 2, 5])
        for page in ((4, 2, 8), (16, 3, 4)):
            pool, source = torch.zeros(3, 2, 7, *page), torch.rand(5, 3, 2, *page)
            with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
                bare_copies._page_kernel()(pool, source, index)
            self.assertTrue(torch.equal(pool[:, :, index], source.movedim(0, 2)))
            self.assertFalse(pool[:, :, [1, 4]].any())

    @needs_torch
    def test_torch(self):
        for dtype in ("bf16", "f32"):
            self.measure("--backend=torch", f"--dtype={dtype}", "--tokens=256", "--chunk=128")

    @needs_torch
    @needs_gpu
    def test_pools_of_both_memories_and_a_gpu(self):
        rows = self.measure("--backend=torch", "--device=cuda:0", "--tokens=512", "--chunk=128", "--span=1,4")
        self.assertEqual([row["place"] for row in rows], ["offload/cpu0", "offload/gpu0"] * 2)


class Disaggregation(unittest.TestCase):
    def measure(self, *flags):
        flags = ["--rounds=1", "--generate=6", "--pool-bytes=64M", "--timeout=30", *flags]
        rows = list(pd_disagg.measure(pd_disagg.options(flags)))
        for row in rows:  # tokens and logits are compared within
            self.assertTrue(row["tokens_equal"] and row["logits_equal"])
            self.assertEqual(len(row["generated"]), 6)
            self.assertTrue(0 <= row["hidden_strictly"] <= row["hidden"] <= 1)
        return rows

    def test_numpy(self):
        rows = self.measure("--tokens=2,200,257")  # 257: the KV of the prompt but for the last token is whole blocks
        self.assertEqual([row["bytes"] for row in rows], [16384 * n for n in (1, 13, 16)])

    def test_numpy_in_chunks_and_groups_of_layers(self):
        self.measure("--tokens=200", "--chunk=64", "--layers-per-object=3")

    def test_windows(self):
        rows = self.measure("--windows", "--tokens=2,257")  # compared with the pool, and with one process
        self.assertEqual([(row["place"], row["load_s"]) for row in rows], [("windows", 0.0)] * 2)
        self.assertIn("0.2 MiB of copies are saved", pd_disagg.show(rows[1]))
        self.measure("--windows", "--tokens=200", "--chunk=64", "--layers-per-object=3")

    @needs_torch
    def test_torch(self):
        self.measure("--backend=torch", "--tokens=100")

    @needs_torch
    def test_torch_by_windows(self):
        self.measure("--windows", "--backend=torch", "--tokens=100")

    @needs_torch
    @needs_gpu
    def test_by_a_pool_of_a_gpu(self):
        devices = ("--prefill-device=cuda:0", "--decode-device=cuda:0", "--pool=gpu")
        self.measure("--backend=torch", "--tokens=300", "--chunk=128", *devices)


class DisaggregationSteps(WithNodes):
    def test_layers_become_readable_one_by_one(self):
        lm = TinyNumpyLM()
        kv = lm.new_kv(8)
        table = kv.take_for(50)
        todo = pd_disagg.parts("one-by-one", kv, 50, 0, 1)
        writer = pd_disagg.LayerWriter(self.client, kv, table, todo, "examples/cpu0")
        writer.start()
        seen = []

        def written(layer):
            writer.layer_written(lm.fence())
            while not self.client.exists(todo[layer].key):
                self.assertIsNone(writer.error)
            seen.append([self.client.exists(part.key) for part in todo])

        lm.forward(range(49), 0, table, kv, layer_written=written)
        writer.finish()
        self.assertEqual(seen, [[i <= layer for i in range(4)] for layer in range(4)])

    def test_a_layer_that_never_comes_is_an_error(self):
        kv = TinyNumpyLM().new_kv(8)
        todo = pd_disagg.parts("never", kv, 50, 0, 1)
        loader = pd_disagg.LayerLoader(self.client, kv, kv.take_for(50), todo, timeout=0.2)
        loader.start()
        with self.assertRaisesRegex(TimeoutError, "pd/never/0/0"):
            loader.wanted(0)
        loader.join()

    def test_layers_arrive_in_the_lent_pages_one_by_one(self):
        here, there = TinyNumpyLM().new_kv(8), TinyNumpyLM().new_kv(8, lend=True)
        here.array[:] = np.random.default_rng(4).standard_normal(here.array.shape)
        source, table = [6, 2, 3, 0], [1, 7, 4, 5]
        todo = pd_disagg.parts("straight", here, 50, 32, 2)
        with self.client.window(there.array) as window, tarn.Client(self.redis) as other:
            pages = [p for part in todo for layer in part.layers for p in part.pieces(there, layer, table)]
            lease = window.lease(pages, write=True)
            writer = pd_disagg.WindowWriter(other, here, source, todo, lease.descriptor)
            writer.start()
            arguments = (self.client, there, table, todo, 20)
            loader = pd_disagg.WindowLoader(lease, *arguments)
            loader.start()
            for _ in range(8):  # 4 layers of two chunks
                self.assertFalse(loader.ready[3].is_set())
                writer.layer_written(lambda: None)
            loader.wanted(3)
            writer.finish()
            loader.join()
        self.assertTrue(np.array_equal(there.array[:, :, table], here.array[:, :, source]))

    def test_a_layer_that_is_never_written_is_an_error(self):
        kv = TinyNumpyLM().new_kv(8, lend=True)
        todo = pd_disagg.parts("never", kv, 50, 0, 1)
        with self.client.window(kv.array) as window:
            lease = window.lease(write=True)
            loader = pd_disagg.WindowLoader(lease, self.client, kv, [0, 1, 2, 3], todo, 0.2)
            loader.start()
            with self.assertRaisesRegex(TimeoutError, "tag 0"):
                loader.wanted(0)
            loader.join()


class Messages(unittest.TestCase):
    """The contents are compared within."""

    def said(self, name, *flags):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            status = importlib.import_module(name).main(flags)
        return status, said.getvalue().splitlines()

    def test_numpy(self):
        status, said = self.said("messages_numpy", "--gpu=3")
        self.assertEqual(status, 0)
        self.assertRegex(said[0], r"^connected to 127\.0\.0\.1, GPU 3, client [0-9a-f]{16}$")
        self.assertEqual(said[1], "received 20 bytes: [1.0, 2.0, 3.0, 4.0, 5.0]")
        self.assertEqual(said[-1], "received sizes: [2048, 4096, 1024]")

    def test_a_sender_that_fails(self):
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(two_processes.run("", _fails, _tells, []), 1)
        self.assertIn("the sender has ended with 1", said.getvalue())

    @needs_torch_alone
    def test_torch(self):
        status, said = self.said("messages_torch")
        self.assertEqual((status, said[-1]), (0, "received sizes: [2048, 4096, 1024]"))


class SparseAttention(unittest.TestCase):
    """Its results are compared within."""

    def said(self, *flags):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(sparse_attention.main(flags), 0)
        return said.getvalue().splitlines()

    @needs_torch_alone
    def test_rows_hold_what_was_encoded(self):
        import torch

        torch.manual_seed(3)
        latent, rope = torch.randn(10, 512), torch.randn(10, 64)
        for row_bytes, latent_bound, rope_bound in ((576, 2**-3, 2**-3), (656, 2**-3, 2**-7)):
            rows = sparse_attention.encode(latent, rope, row_bytes)
            self.assertEqual((rows.shape, rows.dtype), ((10, row_bytes), torch.uint8))
            got_latent, got_rope = sparse_attention.decode(rows).split([512, 64], 1)
            self.assertLess((got_latent - latent).abs().max(), latent_bound * latent.abs().max())
            self.assertLess((got_rope - rope).abs().max(), rope_bound * rope.abs().max())

    @needs_torch_alone
    def test_rows_without_an_object_do_not_count(self):
        import torch

        torch.manual_seed(4)
        query, good = torch.randn(16, 576), torch.tensor([True, False, True, True])
        for row_bytes in (576, 656):
            rows = sparse_attention.encode(torch.randn(4, 512), torch.randn(4, 64), row_bytes)
            want = sparse_attention.attend(query, rows[good], torch.tensor([True] * 3))
            rows[1] = 0xFF  # not a number, in each of its types
            torch.testing.assert_close(sparse_attention.attend(query, rows, good), want)

    def test_without_a_gpu(self):
        with mock.patch.object(sparse_attention, "torch", None):
            self.assertEqual(self.said(), ["nothing was run: this example needs torch and a GPU"])

    @needs_gpu
    def test_on_a_gpu(self):
        said = self.said("--tokens=1024", "--k=64", "--steps=10")
        self.assertEqual([line.split(":")[0] for line in said], ["rows of 576 bytes", "rows of 656 bytes"])
        self.assertRegex(said[0], "10 steps of 64 of 1024 rows, [0-9]+ read, all equal; a page was removed")


def _tells(c, channel):
    channel.send(b"accepted")


def _fails(c, channel):
    channel.recv_into(bytearray(8))  # a channel that ends before it is accepted is never accepted
    sys.exit(1)


class Replay(WithNodes):
    def trace(self, *requests):
        file = tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False)
        self.addCleanup(os.unlink, file.name)
        with file:
            for i, ids in enumerate(requests):
                file.write(json.dumps({"timestamp": i, "hash_ids": list(ids)}) + "\n")
        return file.name

    def run_replay(self, trace, *flags):
        return replay.replay(replay.options([f"--trace={trace}", *flags]))

    def test_one_worker_hits_what_was_put_before(self):
        trace = self.trace(range(10), range(10), [*range(5), 100, 101], [], [0, 200, 2])
        r = self.run_replay(trace, "--workers=1", "--block-bytes=1K")
        self.assertEqual((r["requests"], r["blocks"]), (4, 30))
        self.assertEqual((r["hits"], r["stored"], r["present"]), (10 + 5 + 1, 10 + 2 + 1, 1))  # 2 lies behind a gap
        self.assertEqual((r["wrong"], r["errors"], r["evicted"]), (0, 0, 0))
        self.assertEqual((r["get"]["bytes"], r["put"]["bytes"]), (16 << 10, 13 << 10))

    def test_workers_share_what_they_put(self):
        trace = self.trace(*([range(20)] * 40))
        r = self.run_replay(trace, "--workers=3", "--block-bytes=64")
        self.assertEqual([w["requests"] for w in r["workers"]], [14, 13, 13])
        self.assertEqual(r["stored"], 20)  # each block once, whoever came first
        self.assertEqual(r["hits"] + r["stored"] + r["present"], r["blocks"])
        self.assertEqual((r["wrong"], r["errors"]), (0, 0))

    def test_blocks_are_evicted_when_the_nodes_are_full(self):
        trace = self.trace(*(range(20 * i, 20 * i + 20) for i in range(30)))
        r = self.run_replay(trace, "--workers=2", "--block-bytes=4K", "--capacity-blocks=200")
        self.assertEqual((r["stored"], r["hits"], r["errors"]), (600, 0, 0))

    def test_wrong_bytes_are_seen(self):
        self.client.put_many([(f"replay-x/{i}", replay.Content(1024).of([i + (i == 2)])[0]) for i in range(4)])
        replayer = replay.Replayer(self.client, "x", 1024)
        replayer.request(range(4))
        self.assertEqual((replayer.counts.wrong, replayer.counts.hits), (1, 2))

    def test_a_worker_that_cannot_begin_is_told_of(self):
        with self.assertRaisesRegex(RuntimeError, "worker [01]: .*KeyError.*hash_ids"):
            trace = self.trace([1])
            Path(trace).write_text('{"ids": []}\n' * 2)
            self.run_replay(trace, "--workers=2", f"--redis={self.redis}")


if __name__ == "__main__":
    unittest.main()

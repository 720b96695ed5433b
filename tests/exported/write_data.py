#!/usr/bin/env python3
"""Writes data with weft.write_data, and reads the arrays back; simulates a run that is a dictionary.

    write_data.py BIN_DIR    exits 77, with one line, where python3 has no torch or numpy
"""
import hashlib
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import unittest

if any(importlib.util.find_spec(name) is None for name in ("numpy", "torch")):
    print("SKIPPED: python3 has no torch or no numpy; weft.write_data has not been tried")
    sys.exit(77)
import numpy  # noqa: E402
import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import weft  # noqa: E402


class ByNumber:
    """A dataset as PyTorch's: it has no iterator of its own, and gives tuples."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return torch.full((2, 2), float(i)), i


class Backend:
    def to_str(self):
        return "rules"


class WriteData(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name) / "data"

    def write(self, dataset, **options):
        """Returns the arrays that were written, by field."""
        data = weft.write_data(dataset, self.folder, **options)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), sorted(["data.json", *(f"{n}.npy" for n in data["arrays"])]))
        return {name: numpy.load(path) for name, path in data["arrays"].items()}

    def refused(self, words, dataset, **options):
        with self.assertRaisesRegex(weft.BadRun, words):
            weft.write_data(dataset, self.folder, **options)
        self.assertEqual([p.name for p in self.folder.iterdir()], [], "nothing is left")

    def test_dictionaries_become_an_array_of_each_field(self):
        made = self.write([{"x": [1.5, 2], "label": 3}, {"x": torch.tensor([3., 4.]), "label": numpy.int32(4)}])
        numpy.testing.assert_array_equal(made["x"], numpy.array([[1.5, 2], [3, 4]], numpy.float32))
        numpy.testing.assert_array_equal(made["label"], [3, 4])
        self.assertEqual((made["x"].dtype, made["label"].dtype), (numpy.float32, numpy.int64))

    def test_bytes_and_truth_values_stay_narrow(self):
        images = torch.tensor([255, 0], dtype=torch.uint8)[:, None, None].expand(2, 2, 2)
        made = self.write([{"image": images[0], "good": True}, {"image": images[1], "good": False}])
        numpy.testing.assert_array_equal(made["image"][:, 0, 0], [255, 0])
        numpy.testing.assert_array_equal(made["good"], [1, 0])
        self.assertEqual((made["image"].dtype, made["good"].dtype), (numpy.uint8, numpy.uint8))

    def test_tuples_need_the_names_of_their_parts(self):
        made = self.write(ByNumber(), fields=["image", "label"])
        self.assertEqual(made["image"].shape, (3, 2, 2))
        numpy.testing.assert_array_equal(made["label"], [0, 1, 2])

    def test_samples_of_several_lengths_are_filled_up_with_a_mask(self):
        made = self.write(({"ids": list(range(n)), "labels": list(range(n))} for n in (2, 5)), length=3, pad={"labels": -100})
        numpy.testing.assert_array_equal(made["ids"], [[0, 1, 0], [0, 1, 2]])
        numpy.testing.assert_array_equal(made["labels"], [[0, 1, -100], [0, 1, 2]])
        numpy.testing.assert_array_equal(made["ids_mask"], [[1, 1, 0], [1, 1, 1]])

    def test_a_mask_that_is_all_data_is_left_out(self):
        self.assertEqual(list(self.write([{"ids": [1, 2]}, {"ids": [3, 4]}], length=2)), ["ids"])

    def test_the_tokenizer_is_noted_by_its_hash(self):
        self.write([{"ids": [1]}], tokenizer=Backend())
        note = json.loads((self.folder / "data.json").read_text())
        self.assertEqual(note["tokenizer_sha256"], hashlib.sha256(b"rules").hexdigest())
        self.assertEqual((note["samples"], note["fields"]), (1, ["ids"]))

    @unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "python3 has no pyarrow")
    def test_parquet_is_read(self):
        import pyarrow
        import pyarrow.parquet
        path = self.folder.parent / "rows.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"ids": [[1, 2], [3, 4]]}), path)
        numpy.testing.assert_array_equal(self.write(path)["ids"], [[1, 2], [3, 4]])

    def test_what_cannot_be_written_is_refused_and_leaves_nothing(self):
        self.refused("has no sample", [])
        self.refused("name them all with fields", [(1, 2)])
        self.refused("of 2 parts; name them all", [(1, 2)], fields=["x"])
        self.refused("sample 0 is a int", [1])
        self.refused("sample 1 has no field y", [{"y": 1}, {"x": 1}])
        self.refused("give length= to pad", [{"x": [1]}, {"x": [1, 2]}])
        self.refused("fields are numbers", [{"x": "text"}])
        self.refused("whole numbers have 64 bits", [{"x": numpy.uint64(1 << 63)}])
        self.refused("make all of them one kind", [{"x": 1}, {"x": 1.5}])
        self.refused("make all of them one kind", [{"x": numpy.uint8(1)}, {"x": 256}])
        self.refused("not one dictionary of columns", {"x": [1]})
        self.refused("and not a int", 3)


class Simulate(unittest.TestCase):
    def test_a_run_may_be_a_dictionary(self):
        run = {"model": {"mlp": {"width": 8, "layers": 4}}, "data": {"idx": {"images": "a", "labels": "b"}}, "stages": 2,
               "train": {"steps": 1, "batch": 8, "microbatches": 4, "optimizer": "sgd"}, "schedule": "1f1b"}
        self.assertEqual(weft.simulate(run)["ranks"], 2)
        self.assertEqual(weft.simulate("1f1b", stages=4, microbatches=8)["ranks"], 4)


if __name__ == "__main__":
    os.environ["WEFT_BIN"] = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)

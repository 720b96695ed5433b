"""Counts what each layer of an exported model costs: operations, and the bytes that a backward waits for."""
import torch
from torch.utils.flop_counter import FlopCounterMode

from weft.interpreter import Interpreter

NO_COSTS = {"flops": 0, "activation_bytes": 0, "fixed_activation_bytes": 0, "work_bytes": 0}


def costs_of(interpreter: Interpreter, examples: list[dict[str, torch.Tensor]]) -> list[dict]:
    """Returns the costs of each layer, of a sample; the examples have two different numbers of samples.

    FLOPs are those of products and convolutions, or the elements of the output where a layer has neither.
    """
    (few, small), (many, large) = ((next(iter(e.values())).shape[0], _measure(interpreter, e)) for e in examples)
    costs = []
    for (flops, kept, work), (_, kept_more, _) in zip(small, large):
        by_sample = max(0, (kept_more - kept) // (many - few))
        costs.append({"flops": flops / few, "activation_bytes": by_sample,
                      "fixed_activation_bytes": max(0, kept - by_sample * few), "work_bytes": -(-work // few)})
    return costs


def _key(storage) -> int:
    """Returns what tells the storage from others, also on the meta device, where none has an address."""
    return storage.data_ptr() or storage._cdata


def _measure(interpreter, fields) -> list[tuple[float, int, int]]:
    samples = next(iter(fields.values())).shape[0]
    outputs, measured = [], []
    for layer in interpreter.layers:
        read = [outputs[number] for number in layer["reads"]["layers"]]
        own = {p["name"] for p in layer["parameters"]}
        staying = [t for n, t in interpreter.parameters.items() if n in own] + list(fields.values())
        counted = {_key(t.untyped_storage()) for t in staying + read}
        saved, largest = {}, [0]

        def pack(tensor):
            storage = tensor.untyped_storage()
            if _key(storage) not in counted:
                saved[_key(storage)] = storage.nbytes()
            largest[0] = max(largest[0], storage.nbytes())
            return tensor

        with FlopCounterMode(display=False) as flops, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            output = interpreter.run_layer(layer, outputs, fields, samples)
        storage = output.untyped_storage()
        if _key(storage) not in counted:
            saved[_key(storage)] = storage.nbytes()
        measured.append((flops.get_total_flops() or output.numel(), sum(saved.values()), largest[0]))
        outputs.append(output.detach().requires_grad_())
    return measured

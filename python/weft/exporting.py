"""`weft.export`: writes a model, its loss and its weights as a folder that `weft train` reads."""
import contextlib
import hashlib
import inspect
import json
import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from typing import Callable, Iterable

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from weft.costs import NO_COSTS, costs_of
from weft.cutting import Layer, block_patterns, cut, data_layer
from weft.errors import NotExportable
from weft.figures import Figures, WrongFigures
from weft.graph_file import FORMAT, MODEL_FILES, TYPES, Samples, argument_json, read_folder, write_model, write_weights
from weft.interpreter import Interpreter
from weft.narrowing import matches, narrowed
from weft.plugins import operations_of
from weft.tracing import Means, Trace, Value, aliases_of, trace, trace_evaluation


def export(model: torch.nn.Module, example: dict[str, torch.Tensor], loss: Callable | None = None, *,
           path: str, layers: list[str] | None = None, precisions: Iterable[str] = ("float32",),
           plugins: Iterable[str | os.PathLike] = ()) -> list[str]:
    """Writes the model with its loss and weights as the folder `path`, and returns the names of its layers.

    model: trained as it is; parameters with requires_grad=False stay as they are. Its code is not changed.
    example: the fields of one micro-batch by name, each with the samples first, at least 2 of them. A run may have
        micro-batches of another size; all other sizes and the types stay. Samples hold bool and whole numbers as int64,
        and float16 and bfloat16 as float32. float64 becomes float32.
    loss: `loss(model, fields)`, which returns one number, or two, a sum and its count: then the loss of a step is the
        sum over all micro-batches, divided by the count over all of them. Or a dictionary with that as "loss", and
        further figures by name, each one number or a sum and its count, which evaluations show too. None for
        `model(**fields)` that returns the loss, or an object with it as `loss`.
    layers: patterns of the names of modules before which to cut, as ["transformer.h.*"]; [] for one layer. None
        takes the members of the model's outermost ModuleLists and Sequentials, or else its children.
    precisions: those in which runs can compute, ("float32",) or ("float32", "bf16"). The weights are float32 in both.
        In bf16 layers read copies of them in bfloat16, but for batch norms, buffers stay as they are, and the model's
        output is float32 again before the loss.
    plugins: libraries of C++ operations (TORCH_LIBRARY), or files *.py with operations in Python (torch.library), that the model calls; a
        run names them too, with their hashes.

    A model whose parameters are all on the meta device is exported as an outline, in which no weights are and nothing
    is checked: weft simulates, compares and plans its training, on a machine that could not hold it.

    Raises NotExportable, and writes nothing, if the model cannot be exported. Every other export is checked before: on
    two examples, the loss and all gradients of the folder have the bits of the model's own, and so have, in evaluation
    mode, the loss and all figures. A model without further figures that can be trained and not evaluated is exported
    with a warning.
    """
    outline = isinstance(model, torch.nn.Module) and _is_outline(model)
    _check_arguments(model, example, loss, "meta" if outline else "cpu")
    example = {n: t.float() if t.dtype == torch.float64 else t for n, t in example.items()}
    figures = Figures(loss or _loss_of_output, {n: t.dtype for n, t in example.items()})
    precisions, operations = _checked_precisions(precisions), operations_of(plugins)
    modes = {module: module.training for module in model.modules()}
    try:
        model.train()
        one = {n: t.to("meta" if outline else "cpu", _HELD_AS[t.dtype]) for n, t in sorted(example.items())}
        two = _another(one)
        patterns = block_patterns(model) if layers is None else _checked_patterns(model, layers)
        graphs = {}
        for precision in precisions:
            with _computing_in(precision, model, patterns):
                graphs[precision] = _graphs_of(model, figures, [one, two], patterns, precision, operations, outline)
        _complete(graphs, model)
        _write(path, graphs, model, patterns, figures.loss, [one, two], outline)
    finally:
        for module, mode in modes.items():
            module.training = mode
    content = graphs["float32"].content
    if isinstance(content["evaluation"], str) and not outline:
        warnings.warn(f"weft can train the model and not evaluate it: {content['evaluation']}", stacklevel=2)
    return [layer["name"] for layer in content["layers"]]


# Types that a field may have, and the one in which samples hold it, which has all its numbers. The graph casts it back.
# float64, NumPy's default, is taken too, and is float32 from there on: its numbers are rounded to the nearest.
_HELD_AS = {torch.float32: torch.float32, torch.float16: torch.float32, torch.bfloat16: torch.float32,
            torch.int64: torch.int64, torch.int32: torch.int64, torch.int16: torch.int64, torch.int8: torch.int64,
            torch.uint8: torch.int64, torch.bool: torch.int64}


@dataclass
class _Graphs:
    """The graphs of one precision."""
    content: dict                     # of their file
    tensors: dict[str, torch.Tensor]  # that they read, by name


def _checked_precisions(precisions: Iterable[str]) -> list[str]:
    asked = [precisions] if isinstance(precisions, str) else list(precisions)
    if "float32" not in asked or not set(asked) <= set(MODEL_FILES):
        raise NotExportable(f'precisions are ("float32",) or ("float32", "bf16"), not {tuple(asked)}')
    return [p for p in MODEL_FILES if p in asked]


@contextlib.contextmanager
def _computing_in(precision: str, model, patterns):
    """Makes the model compute in the precision; a failure names it."""
    if precision == "float32":
        yield
        return
    try:
        with narrowed(model, patterns):
            yield
    except NotExportable as error:
        raise type(error)(f"in {precision}: {error}") from error


def _graphs_of(model, figures: Figures, examples, patterns, precision: str, operations, outline: bool) -> _Graphs:
    """Traces the model, which computes in the precision."""
    means = Means(torch.float32 if precision == "float32" else torch.bfloat16, operations)
    first, second = (trace(model, example, figures.loss, means) for example in examples)
    parts = list(zip(cut(first, second, model, patterns), cut(second, first, model, patterns)))
    counting = [(data_layer(first, first.count, "count"), data_layer(second, second.count, "count"))
                ] if first.count is not None else []
    tensors = _tensors_of(parts + counting, first)
    content = {"format": FORMAT, "torch": torch.__version__.split("+")[0], "precision": precision,
               "fields": [{"name": n, **_type_and_size(t.shape[1:], t.dtype)} for n, t in examples[0].items()],
               "layers": _layers_json(parts, first, second)}
    if counting:
        content["count"] = {**_layers_json(counting, first, second)[0], "costs": NO_COSTS}
    if outline:
        content.update(weights=False, evaluation="it was exported without weights")
    else:
        content["evaluation"] = _evaluation_or_reason(model, figures, examples, (first, second), tensors)
    return _Graphs(content, tensors)


def _complete(graphs: dict[str, _Graphs], model) -> None:
    """Adds what the graphs of all precisions have to say together; their parameters become the model's own."""
    own = dict(model.named_parameters())
    names = {name for g in graphs.values() for name in g.tensors}
    for g in graphs.values():
        g.tensors = {n: own[n].detach() if n in own else t for n, t in g.tensors.items()}
        g.content.update(_state_names(model, names))
        if elsewhere := sorted(names - set(g.tensors)):
            g.content["elsewhere"] = elsewhere


def _loss_of_output(model, fields):
    output = model(**fields)
    return output if isinstance(output, torch.Tensor) else output.loss


def _tensors_of(parts: list[tuple[Layer, Layer]], traced: Trace) -> dict[str, torch.Tensor]:
    return {v.name: traced.tensors[v.name] for a, _ in parts
            for kind in ("parameter", "statistic", "constant") for v in a.inputs[kind]}


def _state_names(model: torch.nn.Module, tensors: set[str]) -> dict:
    """Returns what turns the folder's tensors into the module's state_dict: further names, and those that it lacks."""
    state = model.state_dict()
    aliases = {n: first for n, first in aliases_of(model).items() if n in state}
    return {"aliases": aliases, "unread": [n for n in state if n not in tensors and n not in aliases],
            "outside_state": sorted(n for n in tensors if n not in state)}


def _is_outline(model) -> bool:
    devices = {parameter.device.type for parameter in model.parameters()}
    return devices == {"meta"}


def _check_arguments(model, example, loss, device: str) -> None:
    if not isinstance(model, torch.nn.Module):
        raise NotExportable(f"`model` is a {type(model).__name__}, and must be a torch.nn.Module")
    if not isinstance(example, dict) or not all(isinstance(t, torch.Tensor) for t in example.values()):
        raise NotExportable('`example` must be a dictionary of tensors by the names of fields, as {"x": torch.randn(4, 12)}')
    if loss is not None and not callable(loss):
        raise NotExportable("`loss` must be a function of the model and the fields, as "
                            "lambda model, fields: cross_entropy(model(fields[\"x\"]), fields[\"labels\"])")
    if loss is None:
        try:
            inspect.signature(model.forward).bind(**example)
        except TypeError as error:
            raise NotExportable(f"without `loss`, the model is called with the fields by name: {error}; give loss=") from error
    counts = {t.shape[0] if t.dim() else 0 for t in example.values()}
    if len(counts) != 1 or min(counts) < 2:
        raise NotExportable("`example` must have fields whose first dimension is the same number of samples, at least "
                            f"2; it has {sorted(counts)}")
    for name, tensor in example.items():
        if tensor.dtype not in _HELD_AS and tensor.dtype != torch.float64:
            types = ", ".join(str(t).removeprefix("torch.") for t in (*_HELD_AS, torch.float64))
            raise NotExportable(f"the field {name} is of {tensor.dtype}; fields are of {types}")
    for name, module in model.named_modules():
        if getattr(module, "momentum", 0.1) is None and getattr(module, "track_running_stats", False):
            raise NotExportable(f"{name} is a batch norm with momentum=None; give it a number, as 0.1")
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != device:
            raise NotExportable(f"the parameter {name} is of {parameter.dtype} on {parameter.device}; export the model "
                                "in float32 on the CPU, as model.float().cpu(), or all of it on the meta device")


def _checked_patterns(model, layers: list[str]) -> list[str]:
    names = [name for name, _ in model.named_modules() if name]
    for pattern in layers:
        if not any(matches(name, [pattern]) for name in names):
            raise NotExportable(f"`layers` has {pattern!r}, and no module of the model has such a name; its modules are "
                                f"{', '.join(names[:8])}{', ..' if len(names) > 8 else ''}")
    return list(layers)


def _another(example: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns a second example with other values and one more sample."""
    samples = next(iter(example.values())).shape[0]
    order = [(i * 2 + 1) % samples for i in range(samples + 1)]
    return {n: t[order] * 0.75 + 0.125 if t.is_floating_point() else t[order] for n, t in example.items()}


def _type_and_size(size, dtype) -> dict:
    return {"type": TYPES[dtype], "sizes": list(size)}


# ---- the content of a layer, of the traces at two numbers of samples


def _layers_json(parts: list[tuple[Layer, Layer]], first: Trace, second: Trace) -> list[dict]:
    number_of = {a.output: i for i, (a, _) in enumerate(parts)}
    return [_layer_json(a, b, first, second, number_of) for a, b in parts]


def _layer_json(a: Layer, b: Layer, first: Trace, second: Trace, number_of: dict[Value, int]) -> dict:
    values = a.reads + [v for kind in a.inputs.values() for v in kind]
    numbers = {v: i for i, v in enumerate(values)}
    if a.name != b.name or len(a.operations) != len(b.operations):
        raise NotExportable(f"layer {a.name} has other operations for another number of samples")
    operations = []
    for one, two in zip(a.operations, b.operations):
        merged = _merge(one.arguments, two.arguments, first, second, one.place)
        operation = {"op": one.op,
                     "arguments": [argument_json(v, lambda x: numbers.get(x) if isinstance(x, Value) else None)
                                   for v in merged]}
        for result in one.results:
            numbers[result] = len(numbers)
        operation["results"] = [numbers[r] for r in one.results]
        if one.place:
            operation["place"] = one.place
        operations.append(operation)
    output = {"value": numbers[a.output]}
    if a.hands_out_parameter:
        output.update(sizes=list(a.output.meta.shape), of="micro-batch")
    elif a.output not in (first.loss, first.count):
        output.update(sizes=list(a.output.meta.shape[1:]), of="sample")
    return {"name": a.name,
            "reads": {"layers": [number_of[v] for v in a.reads], "fields": [v.name for v in a.inputs["field"]]},
            "parameters": [{"name": v.name, **_type_and_size(v.meta.shape, v.meta.dtype)} for v in a.inputs["parameter"]],
            "statistics": [{"name": v.name, "sizes": list(v.meta.shape), "momentum": first.momenta[v.name]}
                           for v in a.inputs["statistic"]],
            "constants": [{"name": v.name, **_type_and_size(v.meta.shape, v.meta.dtype),
                           "frozen_parameter": v.frozen_parameter}
                          for v in a.inputs["constant"]],
            "values": len(numbers), "operations": operations, "output": output}


def _merge(one, two, first: Trace, second: Trace, place: str):
    """Returns the argument of both traces; whole numbers that grow with the samples as multiples of them."""
    if isinstance(one, Value):
        return one
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return [_merge(x, y, first, second, place) for x, y in zip(one, two)]
    if one == two:
        return one
    if isinstance(one, int) and isinstance(two, int) and one % first.samples == 0:
        times = one // first.samples
        if two == times * second.samples:
            return Samples(times)
    raise NotExportable(f"an operation in {place or 'the model'} has the argument {one} in one example and {two} in "
                        "another; it must depend on the number of samples alone: is there state in Python, or a value "
                        "of the data?")


# ---- the evaluation


def _evaluation_or_reason(model, figures: Figures, examples, training: tuple[Trace, Trace], tensors) -> dict | str:
    """Returns the graph of the model in evaluation mode, checked, or why it has none; adds its tensors to `tensors`."""
    model.eval()
    try:
        content, own = _evaluation(model, figures, examples, training)
        for example in examples:
            _check_evaluation(Interpreter({"layers": [json.loads(json.dumps(content))]}, own), model, figures, example)
    except WrongFigures:
        raise
    except NotExportable as error:
        if figures.further:
            raise
        return " ".join(str(error).split())[:400]
    finally:
        model.train()
    tensors.update({n: t for n, t in own.items() if n not in tensors})
    return content


def _evaluation(model, figures: Figures, examples, training: tuple[Trace, Trace]) -> tuple[dict, dict]:
    """Returns the evaluation's graph, and its tensors by name."""
    traces, forms = [], []
    with _without_fast_path():
        for example, trained in zip(examples, training):
            traces.append(trace_evaluation(model, example, figures.packed, trained))
            forms.append(figures.forms)
    if forms[0] != forms[1]:
        raise NotExportable("the loss function returns other figures for another number of samples")
    layers = tuple(data_layer(t, t.loss, "evaluation") for t in traces)
    content = {**_layer_json(*layers, *traces, {}), "costs": NO_COSTS,
               "figures": [{"name": f.name, "counted": f.counted} for f in forms[0]]}
    return content, _tensors_of([layers], traces[0])


def _check_evaluation(interpreter, model, figures: Figures, example) -> None:
    """Compares the loss and all further figures, in evaluation mode, with the model's own."""
    copy = {n: t.clone() for n, t in example.items()}
    with torch.no_grad(), _as_workers_compute(), _without_fast_path(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with _WithoutDropout():
            own = figures.packed(model, copy).tolist()
        torch.manual_seed(0)
        made = interpreter.run(example).tolist()
    names = [name for f in figures.forms for name in [f.name, f"{f.name}'s count"][:1 + f.counted]]
    for name, a, b in zip(names, own, made):
        if a != b and (a == a or b == b):
            raise NotExportable(f"in evaluation mode, the folder's {name} is {b!r}, and the model's own is {a!r}; does "
                                "the model keep state in Python, or take another way while it is traced?")


@contextlib.contextmanager
def _without_fast_path():
    """Makes torch's transformer layers compute in evaluation mode with the operations of training."""
    former = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(former)


# ---- the check


@contextlib.contextmanager
def _folder_beside(path):
    """Yields a new folder beside the path, and moves it there if all goes well."""
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    if os.path.exists(path) and not os.path.exists(os.path.join(path, "model.json")):
        raise NotExportable(f"{path} is there and is no exported model; give another path")
    partial = tempfile.mkdtemp(prefix=os.path.basename(path) + ".", dir=parent)
    try:
        yield partial
        os.chmod(partial, 0o755)
        if os.path.exists(path):
            shutil.rmtree(path)
        os.rename(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(path, graphs: dict[str, _Graphs], model, patterns, loss, examples, outline: bool) -> None:
    """Writes the folder, and checks it if it has weights. The model in float32 comes last: such a folder is whole."""
    with _folder_beside(path) as partial:
        if not outline:
            state = model.state_dict()
            write_weights(partial, {n: t for g in graphs.values() for n, t in g.tensors.items()},
                          {n: state[n] for n in graphs["float32"].content["unread"]})
        for precision, g in reversed(graphs.items()):
            tensors = g.tensors
            if not outline:
                write_model(partial, g.content, precision)
                folder = read_folder(partial, precision)
                with _computing_in(precision, model, patterns):
                    for example in examples:
                        _check(folder, model, loss, example)
                tensors = folder[1]
            _add_costs(g.content, tensors, examples)
            write_model(partial, g.content, precision)


def _add_costs(content, tensors, examples) -> None:
    # The content as a reader of the file sees it.
    interpreter = Interpreter(json.loads(json.dumps(content)), tensors)
    for layer, costs in zip(content["layers"], costs_of(interpreter, examples)):
        layer["costs"] = costs


class _WithoutDropout(TorchFunctionMode):
    """Leaves dropout out: a worker draws the masks by its own key."""

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        if function in (torch.dropout, torch.nn.functional.dropout):
            return arguments[0]
        return function(*arguments, **(keywords or {}))


@contextlib.contextmanager
def _as_workers_compute():
    """Makes kernels those of a worker: one thread, none of oneDNN."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _keeping_buffers(model):
    """Puts back what a forward writes into the model's buffers, as batch norms do."""
    kept = {buffer: buffer.clone() for buffer in model.buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept.items():
                buffer.copy_(value)


class _BitsOfResults(TorchDispatchMode):
    """Notes the bits of every tensor that an operation makes, and of those that are there."""

    def __init__(self, there: Iterable[torch.Tensor]):
        super().__init__()
        self._seen = {self._bits(tensor) for tensor in there}

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        made = function(*arguments, **(keywords or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor):
                self._seen.add(self._bits(tensor))
        return made

    def has(self, tensor: torch.Tensor) -> bool:
        return self._bits(tensor) in self._seen

    @staticmethod
    def _bits(tensor: torch.Tensor) -> bytes:
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
        return hashlib.blake2b(flat.numpy().tobytes(), digest_size=16).digest()


def _first_other_output(interpreter, model, loss, example) -> str | None:
    """Returns the first layer whose output is not among what the model's own operations make, or None."""
    with _as_workers_compute(), _keeping_buffers(model), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with _WithoutDropout(), _BitsOfResults([*model.state_dict().values(), *example.values()]) as own:
            loss(model, {n: t.clone() for n, t in example.items()})
        torch.manual_seed(0)
        outputs = interpreter.outputs(example)
    return next((layer["name"] for layer, made in zip(interpreter.layers, outputs) if not own.has(made)), None)


def _check(folder, model, loss, example) -> None:
    """Compares the loss and all gradients of the folder with the model's own."""
    interpreter = Interpreter(*folder)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    copy = {n: t.clone() for n, t in example.items()}
    with _as_workers_compute(), _keeping_buffers(model), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with _WithoutDropout():
            own, own_count = _loss_and_count(loss(model, copy))
        own_gradients = torch.autograd.grad(own, list(trained.values()), allow_unused=True)
        torch.manual_seed(0)  # numbers are drawn in the same order
        made, count = interpreter.run(example), interpreter.count(example)
        leaves = interpreter.parameters
        gradients = dict(zip(leaves, torch.autograd.grad(made, list(leaves.values()), allow_unused=True)))
    for (name, _), gradient in zip(trained.items(), own_gradients):
        if gradient is None or gradients.get(name) is None:
            raise NotExportable(f"the parameter {name} gets no gradient from the loss; freeze it with "
                                "requires_grad_(False)")
    own_of = dict(zip(trained, own_gradients))
    same = _same_bits(own, made) and all(_same_bits(own_of[name], gradients[name]) for name in trained)
    if not same and (other := _first_other_output(interpreter, model, loss, example)) is not None:
        raise NotExportable(f"layer {other} is the first whose output the model does not make itself; does the model keep "
                            "state in Python, or take another way while it is traced?")
    # A backward runs from the last layer to the first: what is wrong in a layer shows there first.
    for layer in reversed(interpreter.layers):
        for parameter in layer["parameters"]:
            name = parameter["name"]
            if not _same_bits(own_of[name], gradients[name]):
                raise NotExportable(
                    f"layer {layer['name']} is the first, from the loss on, whose gradients are not the model's own "
                    f"({name}); torch.export loses custom autograd functions, hooks on tensors and state in Python, "
                    "and a model may take another way while it is traced: write it as plain operations, the same always")
    if not _same_bits(own, made):
        raise NotExportable(f"the folder's loss is {made.item()!r}, and the model's own is {own.item()!r}; does the "
                            "model keep state in Python?")
    if (own_count is None) != (count is None) or (count is not None and own_count.item() != count.item()):
        raise NotExportable(f"the folder's count is {count}, and the model's own is {own_count}; is the count computed "
                            "from the data alone?")


def _loss_and_count(made):
    return made if isinstance(made, tuple) else (made, None)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    bits = torch.int16 if a.dtype == torch.bfloat16 else torch.int32
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.detach().contiguous().view(bits),
                                                                     b.detach().contiguous().view(bits))

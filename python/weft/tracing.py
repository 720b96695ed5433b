"""Turns a model and its loss into one list of functional ATen operations.

torch.export traces the unchanged module, in training mode, or in evaluation mode with all figures of the loss function;
its operations are then made functional, so that nothing is written in place. A region under torch.no_grad is kept:
what it makes is detached. torch alone would forget the region, and its gradients would be wrong.
"""
import operator
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import torch

from weft.errors import NotExportable

ALLOWED = frozenset((Path(__file__).parent / "operations.txt").read_text(encoding="utf-8").split())


@dataclass(eq=False)
class Value:
    """A tensor of the graph: a field of the data, a parameter, a constant, or what an operation makes."""
    kind: str  # "field", "parameter", "statistic", "constant" or "result"
    name: str
    meta: Any  # a tensor without bytes, with its size and type
    # True if it depends on a trained parameter or on numbers that were drawn, and if gradients pass through it to a
    # parameter.
    live: bool = False
    trained: bool = False
    frozen_parameter: bool = False


@dataclass(eq=False)
class Operation:
    op: str                # "aten::linear", "aten::add.Tensor"
    arguments: list        # in the order of the operation's schema
    results: list[Value]
    place: str             # line of the model's code
    modules: list[str]     # names of the modules around it, the outermost first
    reads: list[Value] = field(default_factory=list)


@dataclass
class Trace:
    operations: list[Operation]
    loss: Value          # of an evaluation: all figures, in one tensor
    count: Value | None  # by which the sum of the losses is divided; None for a loss that is a mean by itself
    samples: int
    tensors: dict[str, torch.Tensor]  # of parameters, statistics and constants, by name
    momenta: dict[str, float]         # of statistics, by name
    means: "Means"


@dataclass(frozen=True)
class Means:
    """Means with which a model is traced."""
    dtype: torch.dtype = torch.float32           # in which layers compute
    operations: frozenset[str] = frozenset()     # of plug-ins, which it may call beside those of ATen


def trace(model: torch.nn.Module, example: dict[str, torch.Tensor], loss: Callable, means: Means = Means()) -> Trace:
    """Traces `loss(model, example)` of a model that computes in float32, or was narrowed to bfloat16."""
    program = _exported(model, example, loss)
    return _Flattening(program, example, aliases_of(model), means).run()


def trace_evaluation(model: torch.nn.Module, example: dict[str, torch.Tensor], figures: Callable,
                     training: Trace) -> Trace:
    """Traces `figures(model, example)`, one tensor, without gradients, of a model whose training was traced."""
    with torch.no_grad():
        program = _exported(model, example, figures)
    return _EvaluationFlattening(program, example, aliases_of(model), training).run()


def _exported(model, example, function):
    """Returns torch's program of `function(model, example)`, in functional operations of ATen."""
    whole = _Whole(model, function)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A model that asks must take the way that it takes when it is trained: transformers makes other masks and
            # scans, and so takes other kernels, while it is exported or compiled.
            with mock.patch.object(torch.compiler, "is_exporting", lambda: False), \
                    mock.patch.object(torch.compiler, "is_compiling", lambda: False):
                program = torch.export.export(whole, (example,), strict=False)
            _keep_regions_without_gradients(program)
            return program.run_decompositions({})
    except NotExportable:
        raise
    except Exception as error:
        raise NotExportable(f"torch.export cannot trace the model: {error}") from error


def aliases_of(model: torch.nn.Module) -> dict[str, str]:
    """Returns each further name of a parameter or buffer, and its first name, which parameters are called by."""
    first, aliases = {}, {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if first.setdefault(id(tensor), name) != name:
                aliases[name] = first[id(tensor)]
    return aliases


class _Whole(torch.nn.Module):
    def __init__(self, model, loss):
        super().__init__()
        self.model = model
        self._loss = loss
        self.train(model.training)

    def forward(self, fields):
        return self._loss(self.model, fields)


def _keep_regions_without_gradients(program) -> None:
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if str(node.target) != "wrap_with_set_grad_enabled" or node.args[0] is not False:
            continue
        for made in list(node.users):
            with graph.inserting_after(made):
                detached = graph.call_function(torch.ops.aten.detach.default, (made,))
            detached.meta = dict(made.meta)
            made.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
    program.graph_module.recompile()


class _Flattening:
    """Reads torch's program into operations."""

    def __init__(self, program, example, aliases, means: Means):
        self._program = program
        self._means = means
        self._aliases = aliases
        self._example = dict(sorted(example.items()))
        self._values = {}  # by node: a Value or a list of them
        self._operations = []
        self._tensors = {}
        self._momenta = {}

    def run(self) -> Trace:
        signature = self._program.graph_signature
        self._take_inputs(signature)
        self._take_writes(signature)
        returned = []
        for node in self._program.graph.nodes:
            if node.op == "call_function":
                self._take(node)
            elif node.op == "get_attr":
                raise NotExportable(f"{node.target} is a graph within the graph: control flow{_at(_place(node))}")
            elif node.op == "output":
                returned = node.args[0][len(signature.buffers_to_mutate):]
        loss, count = self._loss_and_count(returned)
        samples = next(iter(self._example.values())).shape[0]
        return Trace(needed_for([loss, count], self._operations), loss, count, samples, self._tensors, self._momenta,
                     self._means)

    def _loss_and_count(self, returned) -> tuple[Value, Value | None]:
        if len(returned) not in (1, 2):
            raise NotExportable("the loss must be one tensor, or a sum and a count, and the function returns "
                                f"{len(returned)} values")
        loss, count = [*(self._values[r] if isinstance(r, torch.fx.Node) else None for r in returned), None][:2]
        if not isinstance(loss, Value) or loss.kind != "result" or loss.meta.dim() != 0 or not loss.trained:
            raise NotExportable("the loss must be one number that depends on the model's parameters")
        if loss.meta.dtype != torch.float32:
            raise NotExportable(f"the loss must be float32, and it is {loss.meta.dtype}; return loss.float()")
        if len(returned) == 2 and not (isinstance(count, Value) and count.kind == "result" and count.meta.dim() == 0
                                       and count.meta.dtype in (torch.int64, torch.float32) and not count.live):
            raise NotExportable("the count of the loss must be one number, int64 or float32, that is computed from the "
                                "data alone, as (labels != -100).sum(): all micro-batches of a step are counted before "
                                "the first of them is trained")
        return loss, count

    def _take_writes(self, signature) -> None:
        """Makes the running averages of batch norms statistics; refuses everything else that is written."""
        if signature.user_inputs_to_mutate:
            raise NotExportable("the forward writes into a field of its data; make it work on a copy")
        nodes = {n.name: n for n in self._program.graph.nodes}
        for made, buffer in signature.buffers_to_mutate.items():
            node = nodes[made]
            value = next(v for n, v in self._values.items() if v.name == buffer.removeprefix("model."))
            if str(node.target) == "aten.add.Tensor" and value.name.endswith("num_batches_tracked"):
                continue  # nobody reads it
            norm = node.args[0] if node.target is operator.getitem else node
            averages = [self._values.get(a) for a in norm.args[3:5]] if _is_batch_norm(norm) else []
            if value not in averages or value.meta.dtype != torch.float32:
                raise NotExportable(
                    f"the forward writes the buffer {value.name}; a run may write the averages of batch norms only, each "
                    "of one call and in float32, since what else is written depends on the order of micro-batches")
            value.kind = "statistic"
            self._momenta[value.name] = norm.args[6]

    def _take_inputs(self, signature) -> None:
        state = {**self._program.state_dict, **self._program.constants}
        placeholders = {n.name: n for n in self._program.graph.nodes if n.op == "placeholder"}
        fields = iter(self._example)
        for spec in signature.input_specs:
            node = placeholders[spec.arg.name]
            kind = spec.kind.name
            if kind == "USER_INPUT":
                value = Value("field", next(fields), node.meta["val"])
            elif kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
                tensor = state[spec.target]
                trained = kind == "PARAMETER" and tensor.requires_grad
                name = spec.target.removeprefix("model.")
                name = self._aliases.get(name, name) if kind != "CONSTANT_TENSOR" else self._constant_name(name)
                value = Value("parameter" if trained else "constant", name, node.meta["val"], trained, trained,
                              kind == "PARAMETER" and not trained)
                self._tensors[name] = tensor.detach()
            else:
                raise NotExportable(f"an input of the kind {kind} cannot be exported")
            self._values[node] = value

    def _constant_name(self, name: str) -> str:
        """Returns the name in the folder of a tensor that the model has outside of its state."""
        return name if self._means.dtype == torch.float32 else f"bf16.{name}"  # torch numbers them in each program

    def _take(self, node) -> None:
        if node.target is operator.getitem:
            made, number = self._values[node.args[0]], node.args[1]
            if number < len(made):  # else it is what an operation of Weft's own does not make
                self._values[node] = made[number]
            return
        place = _place(node)
        operation = isinstance(node.target, torch._ops.OpOverload)
        if not operation or (node.target.namespace != "aten" and node.target._schema.name not in self._means.operations):
            raise NotExportable(f"{node.target} is not an operation of ATen, so that a worker cannot run it"
                                f"{_at(place)}; one of a library is named by plugins=[..], and so is Python with torch.library")
        schema = node.target._schema
        if not schema.returns:
            return  # an assertion of the tracer
        arguments = self._arguments(node, schema)
        name = schema.name
        if name == "aten::native_dropout":
            name, arguments = "aten::dropout", [arguments[0], arguments[1], True]
        if name in _UNFILLED:  # what is not filled differs from run to run
            name, kept = _UNFILLED[name]
            arguments = arguments[:kept]
        if _is_batch_norm(node):  # moves no average: that is done once a step
            name, arguments = "aten::batch_norm", [*arguments[:5], True, 0.0, arguments[7], False]
        if name not in ALLOWED | self._means.operations or schema.is_mutable:
            raise NotExportable(f"the operation {name} is not among those that an exported model may use{_at(place)}")
        self._operations.append(self._operation(node, name, schema, arguments, place))

    def _arguments(self, node, schema) -> list:
        arguments = []
        for i, argument in enumerate(schema.arguments):
            if i < len(node.args) and not argument.kwarg_only:
                given = node.args[i]
            else:
                given = node.kwargs.get(argument.name, argument.default_value)
            arguments.append(self._resolved(given))
        return arguments

    def _resolved(self, given):
        if isinstance(given, torch.fx.Node):
            return self._values[given]
        if isinstance(given, (list, tuple)):
            return [self._resolved(v) for v in given]
        return given

    def _operation(self, node, name, schema, arguments, place) -> Operation:
        reads = list(values_of(arguments))
        live = any(v.live for v in reads) or draws(name, schema, arguments)
        trained = any(v.trained for v in reads) and name != "aten::detach"
        made = node.meta["val"]
        several = isinstance(made, (list, tuple)) and name not in _OF_WEFT
        if isinstance(made, (list, tuple)) and not several:
            made = made[0]
        metas = made if several else [made]
        results = [Value("result", f"{node.name}#{i}", meta, live, trained and _floating(meta))
                   for i, meta in enumerate(metas)]
        self._values[node] = results if several or isinstance(node.meta["val"], (list, tuple)) else results[0]
        overload = "" if name in _OF_WEFT or schema.name in _UNFILLED else schema.overload_name
        if name == "aten::view" and not overload:
            name = "aten::reshape"  # the tensor may have other strides than the traced one
        modules = [v[0] for v in node.meta.get("nn_module_stack", {}).values()]
        return Operation(f"{name}.{overload}" if overload else name, arguments, results, place,
                         [m.removeprefix("model.") for m in modules if m not in ("", "model")], reads)


class _EvaluationFlattening(_Flattening):
    """Reads the program of an evaluation, whose one output are the figures; running averages are read."""

    def __init__(self, program, example, aliases, training: Trace):
        super().__init__(program, example, aliases, training.means)
        self._momenta = training.momenta

    def _loss_and_count(self, returned) -> tuple[Value, Value | None]:
        return self._values[returned[0]], None

    def _take_inputs(self, signature) -> None:
        super()._take_inputs(signature)
        for value in self._values.values():
            if value.name in self._momenta:
                value.kind = "statistic"

    def _take_writes(self, signature) -> None:
        for buffer in signature.buffers_to_mutate.values():
            raise NotExportable(f"the forward writes the buffer {buffer.removeprefix('model.')} in evaluation mode")
        super()._take_writes(signature)

    def _constant_name(self, name: str) -> str:
        return f"evaluation.{super()._constant_name(name)}"


def needed_for(wanted: list[Value | None], operations: list[Operation]) -> list[Operation]:
    """Returns the operations that the values depend on."""
    read, kept = set(wanted), []
    for operation in reversed(operations):
        if any(r in read for r in operation.results):
            kept.append(operation)
            read.update(operation.reads)
    return kept[::-1]


def values_of(arguments):
    """Yields the values among arguments."""
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, list):
            yield from values_of(argument)


def _floating(meta) -> bool:
    return isinstance(meta, torch.Tensor) and meta.is_floating_point()


# Operations that a worker runs in its own way; each has one result.
_OF_WEFT = ("aten::dropout", "aten::batch_norm")
# Operations that give memory as it is, and those that fill it, with the arguments that both have.
_UNFILLED = {"aten::empty": ("aten::zeros", 5), "aten::new_empty": ("aten::new_zeros", 6),
             "aten::empty_like": ("aten::zeros_like", 6)}
_RANDOM = frozenset(f"aten::{n}" for n in ("bernoulli", "exponential", "normal", "normal_functional", "rand", "rand_like",
                                           "randint", "randn", "randn_like", "randperm", "uniform"))
_RATES = ("dropout_p", "dropout")  # names of the arguments by which other operations drop out


def draws(name: str, schema, arguments) -> bool:
    """Returns true for an operation that draws numbers; dropout that stands alone is not among them."""
    if name in _OF_WEFT:
        return False
    return name in _RANDOM or any(a.name in _RATES and given for a, given in zip(schema.arguments, arguments))


def _is_batch_norm(node) -> bool:
    return str(node.target) == "aten._native_batch_norm_legit_functional.default" and node.args[5] is True


def _place(node) -> str:
    """Returns the line of the model's code that made an operation, as "model.py:12"."""
    found = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    here = str(Path(__file__).parent)
    own = [f for f in found if "/site-packages/torch/" not in f[0] and not f[0].startswith(("<", here))]
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else ""


def _at(place: str) -> str:
    return f", in {place}" if place else ""

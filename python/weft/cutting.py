"""Cuts a traced model into layers where one tensor that depends on parameters crosses.

Values that depend on the data and on constants alone, as masks and positions, do not cross: each layer that reads one
computes it again. Cuts are at the borders of the model's own blocks. A tied parameter, which several layers read,
becomes a layer of its own that hands it to them.
"""
from dataclasses import dataclass, field, replace

import torch

from weft.errors import NotExportable
from weft.narrowing import matches
from weft.tracing import Operation, Trace, Value, needed_for, values_of


@dataclass
class Layer:
    name: str
    operations: list[Operation]
    output: Value
    reads: list[Value] = field(default_factory=list)  # outputs of other layers, in the order of layers
    inputs: dict[str, list[Value]] = field(default_factory=dict)  # by kind, in this order: field, parameter, statistic, constant
    hands_out_parameter: bool = False  # its output has no samples


def block_patterns(model: torch.nn.Module) -> list[str]:
    """Returns the patterns of the model's own blocks: members of its outermost lists, or else its children."""
    lists = [name for name, module in model.named_modules()
             if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and len(module) > 1]
    lists = [name for name in lists if not any(name != o and (o == "" or name.startswith(o + ".")) for o in lists)]
    return [f"{name}.*" if name else "*" for name in lists] or ["*"]


def cut(trace: Trace, other: Trace, model: torch.nn.Module, patterns: list[str]) -> list[Layer]:
    """Returns the layers, in order. `other` is a trace with another number of samples."""
    operations = trace.operations
    blocks = [_block_of(o, patterns) for o in operations]
    with_parameters = {name for name, module in model.named_modules() if any(True for _ in module.parameters())}
    blocks = [b if b in with_parameters else None for b in blocks]
    cuts = _places(trace, blocks, _by_sample(trace, other))
    layers, begin, previous = [], 0, None
    for place in [*cuts, len(operations) - 1]:
        last = place == len(operations) - 1
        output = trace.loss if last else _crossing(trace, place)[0]
        inner = _needed(operations, begin, place + 1, output)
        layers.append(_layer(inner, output, previous, _name_of(inner, blocks, operations, layers)))
        begin, previous = place + 1, output
    layers = _hand_out_tied(layers) + layers
    number_of = {layer.output: i for i, layer in enumerate(layers)}
    for layer in layers:
        layer.reads.sort(key=number_of.get)
    return layers


def data_layer(trace: Trace, output: Value, name: str) -> Layer:
    """Returns one layer, of no other one, that makes a value: the count of the loss, or the figures."""
    return _layer(needed_for([output], trace.operations), output, None, name)


def _block_of(operation: Operation, patterns: list[str]) -> str | None:
    return next((module for module in operation.modules if matches(module, patterns)), None)


def _last_readers(trace: Trace) -> dict[Value, int]:
    last = {}
    for i, operation in enumerate(trace.operations):
        for value in operation.reads:
            last[value] = i
    last[trace.loss] = len(trace.operations)
    return last


def _crossing(trace: Trace, place: int) -> list[Value]:
    """Returns the live values that operations behind `place` read from before."""
    last = _last_readers(trace)
    return [v for o in trace.operations[:place + 1] for v in o.results if v.live and last.get(v, -1) > place]


def _by_sample(trace: Trace, other: Trace) -> set[Value]:
    """Returns the results whose first dimension alone counts the samples."""
    pairs = [pair for a, b in zip(trace.operations, other.operations) for pair in zip(a.results, b.results)]
    return {a for a, b in pairs if isinstance(a.meta, torch.Tensor) and isinstance(b.meta, torch.Tensor)
            and a.meta.dim() > 1 and a.meta.shape[0] == trace.samples and b.meta.shape[0] == other.samples
            and a.meta.shape[1:] == b.meta.shape[1:]}


def _places(trace: Trace, blocks: list[str | None], by_sample: set[Value]) -> list[int]:
    """Returns the operations behind which a cut is made."""
    operations = trace.operations
    live = [i for i, o in enumerate(operations) if any(r.live for r in o.results)]
    single = _single_places(trace, by_sample)
    places, block = [], None
    for before, i in zip([None, *live], live):
        if blocks[i] is None or blocks[i] == block:
            continue
        block = blocks[i]
        if before is not None:
            fitting = [p for p in single if before <= p < i]
            places += fitting[-1:]
    in_blocks = [i for i in live if blocks[i] is not None]
    if in_blocks:  # what follows the last block, as a norm and the scores, is a layer too
        behind = [p for p in single if in_blocks[-1] <= p < live[-1]]
        if any(o.reads and any(v.kind == "parameter" for v in o.reads) for o in operations[in_blocks[-1] + 1:]):
            places += behind[:1]
    return sorted(set(places))


def _single_places(trace: Trace, by_sample: set[Value]) -> list[int]:
    """Returns the places that one tensor alone crosses, of the type in which layers compute, samples first, through
    which gradients pass."""
    last, alive, single = _last_readers(trace), set(), []
    for i, operation in enumerate(trace.operations):
        alive |= {v for v in operation.results if v.live}
        alive = {v for v in alive if last.get(v, -1) > i}
        if len(alive) != 1 or i + 1 == len(trace.operations):
            continue
        (value,) = alive
        if value.trained and value.meta.dtype == trace.means.dtype and value in by_sample:
            single.append(i)
    return single


def _needed(operations: list[Operation], begin: int, end: int, output: Value) -> list[Operation]:
    """Returns the live operations of a range, and those that depend on data alone that they read."""
    maker = {r: i for i, o in enumerate(operations) for r in o.results}
    wanted = {i for i in range(begin, end) if any(r.live for r in operations[i].results)}
    stack = list(wanted)
    while stack:
        for value in operations[stack.pop()].reads:
            made = maker.get(value)
            if made is not None and made not in wanted and not value.live:
                wanted.add(made)
                stack.append(made)
    for i in wanted:
        if operations[i].op == "aten::dropout" and not operations[i].results[0].live:
            raise NotExportable(f"a dropout of what depends on data alone cannot be exported, in {operations[i].place}")
    return needed_for([output], [operations[i] for i in sorted(wanted)])


def _layer(operations: list[Operation], output: Value, previous: Value | None, name: str) -> Layer:
    layer = Layer(name, operations, output, [], {"field": [], "parameter": [], "statistic": [], "constant": []})
    made = {r for o in operations for r in o.results}
    for operation in operations:
        for value in operation.reads:
            if value.kind in layer.inputs:
                if value not in layer.inputs[value.kind]:
                    layer.inputs[value.kind].append(value)
            elif value is previous:
                layer.reads = [value]
            elif value not in made:
                raise NotExportable(f"layer {name} reads more than one tensor of the layers before; give other "
                                    f"`layers`, of blocks that one tensor alone enters")
    if previous is not None and not layer.reads:
        raise NotExportable(f"layer {name} does not read the layer before it")
    return layer


def _name_of(inner: list[Operation], blocks: list, operations: list[Operation], layers: list[Layer]) -> str:
    index = {id(o): i for i, o in enumerate(operations)}
    named = [blocks[index[id(o)]] for o in inner if o.results[0].live and blocks[index[id(o)]] is not None]
    outer = [o.modules[0].split(".")[0] for o in inner if o.results[0].live and o.modules]
    name = (named or outer or ["loss"])[0]
    taken = {layer.name for layer in layers}
    return name if name not in taken else next(n for i in range(2, 10000) if (n := f"{name}_{i}") not in taken)


# ---- tied parameters


def _hand_out_tied(layers: list[Layer]) -> list[Layer]:
    """Returns a layer for each tied parameter, whose readers read that layer's output in its place.

    With k uses there are k - 1 such layers, each read by one use and by the next of them. So every output has at most
    two readers, and the gradients of the uses are summed from the last use to the first, as by PyTorch, wherever the
    model is cut.
    """
    readers = {}
    for layer in layers:
        for parameter in layer.inputs["parameter"]:
            readers.setdefault(parameter, []).append(layer)
    made = []
    for parameter, reading in readers.items():
        if len(reading) > 1:
            made += _hand_out(parameter, reading, {layer.name for layer in layers + made})
    return made


def _hand_out(parameter: Value, reading: list[Layer], taken: set[str]) -> list[Layer]:
    uses = [(layer, i) for layer in reading for i, o in enumerate(layer.operations) for v in o.reads if v is parameter]
    handed, given = [], parameter
    for number in range(1, len(uses)):
        output = Value("result", f"{parameter.name}#{number}", parameter.meta, True, True)
        clone = Operation("aten::clone", [given, None], [output], "", [], [given])
        name = f"tied.{parameter.name}" + (f".{number}" if number > 1 else "")
        if name in taken:
            raise NotExportable(f"the model has a module {name}; give it another name")
        own = {"field": [], "parameter": [parameter] if number == 1 else [], "statistic": [], "constant": []}
        handed.append(Layer(name, [clone], output, [] if number == 1 else [given], own, hands_out_parameter=True))
        given = output
    outputs = [layer.output for layer in handed]
    for (layer, i), output in zip(uses, outputs + outputs[-1:]):
        layer.operations[i] = _with_one_replaced(layer.operations[i], parameter, output)
        if output not in layer.reads:
            layer.reads.append(output)
    for layer in reading:
        layer.inputs["parameter"].remove(parameter)
    return handed


def _with_one_replaced(operation: Operation, value: Value, other: Value) -> Operation:
    """Returns the operation with `other` in the place where it first reads `value`."""
    left = [True]

    def replaced(argument):
        if isinstance(argument, list):
            return [replaced(a) for a in argument]
        if argument is value and left[0]:
            left[0] = False
            return other
        return argument

    arguments = replaced(operation.arguments)
    return replace(operation, arguments=arguments, reads=list(values_of(arguments)))

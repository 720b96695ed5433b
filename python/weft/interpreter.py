"""Runs the graphs of an exported model's folder in Python, operation by operation, as a worker does in C++.

The check of an export compares this with the model itself.
"""
import torch

from weft.graph_file import TYPE_OF, argument_of


class Interpreter:
    """The layers of a folder that `graph_file.read_folder` returned, on the device of its tensors.

    Dropout that stands alone drops nothing.
    """

    def __init__(self, model: dict, tensors: dict[str, torch.Tensor]):
        self.layers = model["layers"]
        self._device = next((t.device for t in tensors.values()), torch.device("cpu"))
        self._counting = model.get("count")
        # Leaves of the graph, by name; a parameter that several operations of a layer read is one leaf.
        self.parameters = {p["name"]: tensors[p["name"]].to(TYPE_OF[p.get("type", "F32")], copy=True).requires_grad_()
                           for layer in self.layers for p in layer["parameters"]}
        self._statistics = {s["name"]: tensors[s["name"]] for layer in self.layers for s in layer["statistics"]}
        self._constants = {c["name"]: tensors[c["name"]].to(TYPE_OF[c["type"]])
                           for layer in [*self.layers, self._counting or {"constants": []}] for c in layer["constants"]}

    def run_layer(self, layer: dict, outputs: list[torch.Tensor], fields: dict[str, torch.Tensor],
                  samples: int) -> torch.Tensor:
        """Returns the layer's output; `outputs` are those of the layers before it."""
        values = [None] * layer["values"]
        given = [outputs[number] for number in layer["reads"]["layers"]]
        given += [fields[name] for name in layer["reads"]["fields"]]
        given += [self.parameters[p["name"]] for p in layer["parameters"]]
        given += [self._statistics[s["name"]].clone() for s in layer["statistics"]]
        given += [self._constants[c["name"]] for c in layer["constants"]]
        values[:len(given)] = given
        for operation in layer["operations"]:
            made = _call(operation, values, samples, self._device)
            results = operation["results"]
            for number, result in zip(results, made if isinstance(made, (list, tuple)) else [made]):
                if number is not None:
                    values[number] = result
        return values[layer["output"]["value"]].contiguous()

    def run(self, fields: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns the loss."""
        return self.outputs(fields)[-1]

    def outputs(self, fields: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Returns what each layer makes; the last one makes the loss."""
        samples = next(iter(fields.values())).shape[0]
        outputs = []
        for layer in self.layers:
            outputs.append(self.run_layer(layer, outputs, fields, samples))
        return outputs

    def count(self, fields: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """Returns the count by which the sum of the losses is divided, or None."""
        samples = next(iter(fields.values())).shape[0]
        return self.run_layer(self._counting, [], fields, samples) if self._counting else None


def _call(operation: dict, values: list, samples: int, device: torch.device):
    arguments = [argument_of(form, values, samples, device) for form in operation["arguments"]]
    if operation["op"] == "aten::dropout":
        return arguments[0]
    full, _, overload = operation["op"].partition(".")
    namespace, _, name = full.partition("::")
    call = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    schema = call._schema.arguments
    by_place = [a for a, s in zip(arguments, schema) if not s.kwarg_only]
    by_name = {s.name: a for a, s in zip(arguments, schema) if s.kwarg_only}
    return call(*by_place, **by_name)

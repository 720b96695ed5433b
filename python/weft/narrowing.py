"""Makes a model compute in bfloat16, as a run with `precision: bf16` does."""
import contextlib
import fnmatch

import torch
from torch.utils._pytree import tree_map_only


def matches(name: str, patterns: list[str]) -> bool:
    """Returns true if one of the patterns has the module's name; a star stands for a part of it between dots."""
    return any(name.count(".") == p.count(".") and fnmatch.fnmatchcase(name, p) for p in patterns)


@contextlib.contextmanager
def narrowed(model: torch.nn.Module, blocks: list[str]):
    """Makes the model compute in bfloat16 within the region; its code and its float32 weights stay.

    Parameters are narrowed, but for those of batch norms; buffers are not. The model and each module with narrow
    parameters read their input in bfloat16, and modules that match `blocks` hand on bfloat16, so that a cut is possible
    behind each of them although float32 buffers may widen what is between. The model's own output is float32, and so is
    the loss of it.
    """
    kept, hooks = {}, []
    try:
        for name, module in model.named_modules():
            own = [] if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) else [*module.parameters(recurse=False)]
            for parameter in own:
                if parameter not in kept:
                    kept[parameter] = parameter.data
                    parameter.data = parameter.data.to(torch.bfloat16)
            if own:
                hooks.append(module.register_forward_pre_hook(_narrow_input, with_kwargs=True))
            if matches(name, blocks):
                hooks.append(module.register_forward_hook(_narrow_output))
        hooks.append(model.register_forward_pre_hook(_narrow_input, with_kwargs=True))
        hooks.append(model.register_forward_hook(_widen_output))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, wide in kept.items():
            parameter.data = wide


def _narrow_input(_, args, keywords):
    return _cast((args, keywords), torch.float32, torch.bfloat16)


def _narrow_output(_, args, made):
    # A layer's output is contiguous, and products of bfloat16 may have other bits for other strides.
    narrow = _cast(made, torch.float32, torch.bfloat16)
    return tree_map_only(torch.Tensor, lambda t: t.contiguous() if t.dtype == torch.bfloat16 else t, narrow)


def _widen_output(_, args, made):
    return _cast(made, torch.bfloat16, torch.float32)


def _cast(values, old: torch.dtype, new: torch.dtype):
    return tree_map_only(torch.Tensor, lambda t: t.to(new) if t.dtype == old else t, values)

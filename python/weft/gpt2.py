"""The names and shapes of transformers' GPT-2 and of the built-in gpt, one for the other."""
import re

import torch

# transformers' name and the built-in gpt's of each part of a block, and whether the weight is transposed there.
_PARTS = [("ln_1", "norm1", False), ("attn.c_attn", "attention.qkv", True), ("attn.c_proj", "attention.projection", True),
          ("ln_2", "norm2", False), ("mlp.c_fc", "mlp.expand", True), ("mlp.c_proj", "mlp.contract", True)]
_OTHERS = {"transformer.wte.weight": "embedding.token.weight", "transformer.wpe.weight": "embedding.position.weight",
           "transformer.ln_f.weight": "head.norm.weight", "transformer.ln_f.bias": "head.norm.bias",
           "lm_head.weight": "head.projection.weight"}
_TIED = "token.weight"  # the embedding of a tied gpt
_BLOCK_OF_GPT2 = re.compile(r"transformer\.h\.(\d+)\.(.+)\.(weight|bias)")
_BLOCK_OF_WEFT = re.compile(r"block(\d+)\.(.+)\.(weight|bias)")


def from_gpt2(state: dict[str, torch.Tensor], *, tied: bool = True) -> dict[str, torch.Tensor]:
    """Returns the state_dict of a GPT2LMHeadModel with the names and shapes of `model: {gpt: {gelu: tanh, tied: true}}`.

    tied: False for a gpt without `tied: true`, whose projection to the scores is a matrix of its own.
    """
    parts = {theirs: (ours, transposed) for theirs, ours, transposed in _PARTS}
    if tied:
        state = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
        return _renamed(state, {**_OTHERS, "transformer.wte.weight": _TIED}, _BLOCK_OF_GPT2, parts, "block{}.{}.{}")
    state = {**state, "lm_head.weight": state.get("lm_head.weight", state["transformer.wte.weight"])}
    return _renamed(state, _OTHERS, _BLOCK_OF_GPT2, parts, "block{}.{}.{}")


def to_gpt2(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the state_dict of the built-in gpt, as load_checkpoint gives it, with the names and shapes of GPT-2."""
    parts = {ours: (theirs, transposed) for theirs, ours, transposed in _PARTS}
    if _TIED in state:
        both = {"embedding.token.weight": state[_TIED], "head.projection.weight": state[_TIED]}
        state = {**{name: tensor for name, tensor in state.items() if name != _TIED}, **both}
    return _renamed(state, {ours: theirs for theirs, ours in _OTHERS.items()}, _BLOCK_OF_WEFT, parts, "transformer.h.{}.{}.{}")


def _renamed(state, others, block, parts, form):
    renamed = {}
    for name, tensor in state.items():
        found = block.fullmatch(name)
        if name in others:
            renamed[others[name]] = tensor.detach().clone()
        elif found and found[2] in parts:
            part, transposed = parts[found[2]]
            turned = tensor.detach().T if transposed and found[3] == "weight" else tensor.detach()
            renamed[form.format(found[1], part, found[3])] = turned.clone(memory_format=torch.contiguous_format)
        elif not name.endswith((".attn.bias", ".attn.masked_bias")):  # masks, which older versions keep
            raise KeyError(f"{name} is no tensor of such a model")
    return renamed

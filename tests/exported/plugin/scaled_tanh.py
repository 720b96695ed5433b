"""Registers an operation that is written in Python, weft_test_python::scaled_tanh, with an autograd function of its own: the plug-in that the
tests name in their runs where python3 has PyTorch (docs/guide/your_own_model.md)."""
import torch


@torch.library.custom_op("weft_test_python::scaled_tanh", mutates_args=())
def scaled_tanh(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x * scale).tanh()


@scaled_tanh.register_fake
def _(x, scale):
    return torch.empty_like(x)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(output)
    ctx.scale = inputs[1]


def _backward(ctx, gradient):
    y, = ctx.saved_tensors
    return gradient * (1 - y * y) * ctx.scale, None


scaled_tanh.register_autograd(_backward, setup_context=_keep)

"""Models of our own as a user would write them, with their losses and examples: what is exported in the tests."""
import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    """Reads a mask as a second field, and has a layer that is frozen."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24), nn.SiLU(),
                                    nn.Linear(24, 5))
        self.layers[2].requires_grad_(False)

    def forward(self, x, mask):
        return self.layers(x * mask)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, 8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(4, 16)
        self.scores = nn.Linear(16, 4)

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.relu(self.norm2(self.conv2(x)))
        return self.scores(x.mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask):
        samples, tokens, width = x.shape
        q, k, v = (part.view(samples, tokens, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(width, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.drop(self.out(attended.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class Gpt(nn.Module):
    """Attends to what stands before and is no padding: every block reads the data too."""

    def __init__(self, dropout=0.0, blocks=3):
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 16), nn.Embedding(8, 16)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(16, 2, dropout) for _ in range(blocks)])
        self.norm, self.scores = nn.LayerNorm(16), nn.Linear(16, 32, bias=False)
        self.register_buffer("causal", torch.ones(8, 8, dtype=torch.bool).tril())

    def forward(self, tokens):
        x = self.drop(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1])))
        mask = self.causal & (tokens != 0)[:, None, None, :] | torch.eye(8, dtype=torch.bool)
        for block in self.blocks:
            x = block(x, mask)
        return self.scores(self.norm(x))


class TiedGpt(Gpt):
    """Its token embedding is its projection to the scores, too."""

    def __init__(self):
        super().__init__()
        self.scores.weight = self.tokens.weight


class NormedCnn(nn.Module):
    """Batch norms with constants of their own, and one without a weight."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8, eps=1e-3, momentum=0.3))
        self.conv2 = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16, momentum=0.01))
        self.scores = nn.Sequential(nn.BatchNorm1d(16, affine=False), nn.Linear(16, 4))

    def forward(self, images):
        x = F.relu(self.conv1(images))
        return self.scores(F.relu(self.conv2(x)).mean((2, 3)))


class Classifier(nn.Module):
    """Computes something else in evaluation mode: batch norms, dropout, dropout within attention, noise, and a scale."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12, momentum=0.3), nn.GELU(),
                                                   nn.Dropout(0.2)) for _ in range(2)])
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.scores = nn.Linear(12, 4)

    def forward(self, x):
        if self.training:
            x = x * torch.tensor([0.5, 1.5]).repeat(6) + 0.1 * torch.randn_like(x)
        else:
            x = x * torch.tensor([1.0, 1.25, 0.75]).repeat(4)
        for layer in self.layers:
            x = x + layer(x)
        return self.scores(self.attention(x.view(-1, 3, 4)).flatten(1))


class Layered(nn.Module):
    """Has linear layers, and one that gives five scores; subclasses say what is between them."""

    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(layers))
        self.scores = nn.Linear(12, 5)


class Drawing(Layered):
    """Draws numbers in several ways: noise, dropout within attention, and dropout that stands alone."""

    def forward(self, x):
        x = self.layers[0](x)
        x = self.layers[1](x + 0.1 * torch.randn_like(x))
        parts = x.view(-1, 2, 3, 2)
        x = F.scaled_dot_product_attention(parts, parts, parts, dropout_p=0.2).reshape(-1, 12)
        return self.scores(F.dropout(self.layers[2](x), 0.1) * torch.rand(12))


class Noisy(Layered):
    """Draws numbers in further ways: gumbel softmax, tensors that are filled, and permutations."""

    def __init__(self):
        super().__init__(layers=4)

    def forward(self, x):
        x = F.gumbel_softmax(self.layers[0](x))
        x = self.layers[1](x * torch.empty_like(x).uniform_(0.5, 1.5)) + torch.empty_like(x).normal_(0, 0.1)
        x = self.layers[2](x)[:, torch.randperm(12)] + torch.normal(torch.zeros(12), 0.1)
        return self.scores(self.layers[3](x))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(32, 12)
        self.memory = nn.LSTM(12, 16, num_layers=2, batch_first=True)
        self.scores = nn.Linear(16, 32)

    def forward(self, tokens):
        return self.scores(self.memory(self.tokens(tokens))[0])


class Contrast(nn.Module):
    """Compares the samples of a micro-batch with one another: behind its blocks there is one number for each pair."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return (x @ x.T) * self.scale


class Plugged(Layered):
    """Calls an operation of one of the tests' plug-ins, which must be loaded."""

    def __init__(self, namespace="weft_test"):
        super().__init__()
        self.operations = getattr(torch.ops, namespace)

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = self.operations.scaled_tanh(layer(x), 0.5 + i)
        return self.scores(x)


class Functions(nn.Module):
    """Calls many functions of a tensor, each after a linear layer of its own."""

    SHAPED = (
        lambda x: torch.atan(x) + torch.tan(0.1 * x) + torch.sinh(x) * torch.cosh(x), lambda x: torch.acos(0.5 * torch.tanh(x)),
        lambda x: torch.asinh(x) + torch.atanh(0.5 * torch.tanh(x)) + torch.exp2(x), lambda x: torch.erfinv(0.5 * torch.tanh(x)),
        lambda x: torch.logaddexp(x, 2 * x) + torch.logcumsumexp(x, 1), lambda x: torch.cummax(x, 1).values + torch.cummin(x, 1).values,
        lambda x: torch.nan_to_num(x / torch.where(torch.isfinite(x), x.abs() + 1, x)), lambda x: x - torch.round(x) + torch.trunc(x),
        lambda x: F.celu(x) + F.threshold(x, 0.1, 0.2) + F.hardshrink(x) + F.softshrink(x), lambda x: torch.sgn(x) * torch.hypot(x, x + 1),
        lambda x: x * F.cosine_similarity(x, x + 1, dim=1).unsqueeze(1), lambda x: x * torch.median(x, 1).values.unsqueeze(1),
        lambda x: (x - torch.std_mean(x, 1)[1].unsqueeze(1)) * torch.std_mean(x, 1)[0].unsqueeze(1),
        lambda x: x + torch.cdist(x, 2 * x).mean() + F.pairwise_distance(x, x + 1).mean() + torch.linalg.norm(x) + torch.dot(x[0], x[0]),
        lambda x: torch.zeros_like(x).scatter_reduce(1, x.argsort(1), x, "sum") + torch.bucketize(x, torch.linspace(-1, 1, 5)),
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 6, 2)) * torch.polar(x[:, :6].abs(), x[:, 6:])).flatten(1),
        lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * 0.5, n=12, dim=1), lambda x: torch.tensordot(x, torch.ones(12, 12), dims=1),
        lambda x: x * torch.meshgrid(torch.arange(len(x)), torch.arange(12), indexing="ij")[1],
        lambda x: F.fold(F.unfold(x.view(-1, 3, 2, 2), 2), (2, 2), 2).flatten(1), lambda x: F.pixel_unshuffle(x.view(-1, 3, 2, 2), 2).flatten(1),
        lambda x: F.interpolate(x.view(-1, 1, 12), 12, mode="linear").flatten(1),
        lambda x: F.interpolate(x.view(-1, 3, 2, 2), (2, 2), mode="bicubic").flatten(1),
        lambda x: F.grid_sample(x.view(-1, 3, 2, 2), torch.tanh(x[:, :8]).view(-1, 2, 2, 2), align_corners=False).flatten(1),
        lambda x: F.adaptive_max_pool2d(x.view(-1, 3, 2, 2), 2).flatten(1) + F.max_pool3d(x.view(-1, 3, 1, 2, 2), 1).flatten(1),
        lambda x: x + F.embedding_bag(torch.zeros(2, dtype=torch.int64), torch.ones(3, 12), torch.zeros(1, dtype=torch.int64)),
        lambda x: x + torch.linalg.slogdet(x[:, :4].mT @ x[:, :4] + torch.eye(4))[1],
        lambda x: x + F.triplet_margin_loss(x, x + 1, x - 1) + F.poisson_nll_loss(x, x.abs()) + F.soft_margin_loss(x, torch.ones_like(x)),
        lambda x: x + F.cosine_embedding_loss(x, x + 1, torch.ones(len(x))) + F.margin_ranking_loss(x, 2 * x, torch.ones_like(x)),
    )

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.utils.parametrizations.weight_norm(nn.Linear(12, 12)) for _ in self.SHAPED)

    def forward(self, x):
        for layer, function in zip(self.layers, self.SHAPED):
            x = torch.tanh(function(layer(x)))
        return x


def next_token_loss(model, fields):
    return F.cross_entropy(model(fields["tokens"]).flatten(0, 1), fields["targets"].flatten())


def sum_and_count(model, fields):
    """The sum over the targets that are no padding, and their number."""
    scores, targets = model(fields["tokens"]).flatten(0, 1), fields["targets"].flatten()
    return F.cross_entropy(scores, targets, ignore_index=0, reduction="sum"), (targets != 0).sum()


def classified(model, fields):
    """The loss, and the shares of the samples whose class has the highest score, and one of the two highest."""
    scores, classes = model(fields["x"]), fields["classes"]
    figures = {"loss": F.cross_entropy(scores, classes)}
    if not model.training:
        figures["top2"] = (scores.topk(2)[1] == classes[:, None]).any(1).float().mean()
        figures["accuracy"] = (scores.argmax(1) == classes).sum(), len(classes)
    return figures


def sum_and_count_scored(model, fields):
    """sum_and_count, and the share of the targets that are no padding whose score is the highest."""
    scores, targets = model(fields["tokens"]), fields["targets"]
    counts, right = targets != 0, scores.argmax(-1) == targets
    return {"loss": (F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum"), counts.sum()),
            "accuracy": ((right & counts).sum(), counts.sum())}


def _tokens(samples):
    text = torch.randint(1, 32, (samples, 9))
    text[::3, 6:] = 0  # padding
    return {"tokens": text[:, :8].clone(), "targets": text[:, 1:].clone()}


def _uneven(samples):
    """Samples with targets of different numbers, so that no two micro-batches count the same."""
    fields = _tokens(samples)
    for i, targets in enumerate(fields["targets"]):
        targets[1 + i % 8:] = 0
    return fields


# Modules by name: the module, its loss, and a function that makes samples.
class Typed(nn.Module):
    """Reads fields of many types."""

    def __init__(self):
        super().__init__()
        self.pixels, self.words, self.head = nn.Linear(12, 16), nn.Embedding(10, 16), nn.Linear(16, 5)

    def forward(self, image, keep, word, scale):
        inner = torch.relu(self.pixels(image.float() / 255))
        inner = torch.where(keep[:, None], inner, torch.zeros_like(inner)) + self.words(word)
        return self.head(inner * scale[:, None].float())


def _typed(n):
    return {"image": torch.randint(0, 256, (n, 12), dtype=torch.uint8), "keep": torch.rand(n) > 0.3,
            "word": torch.randint(0, 10, (n,), dtype=torch.int32), "scale": torch.rand(n).half(),
            "label": torch.randint(0, 5, (n,), dtype=torch.int16)}


MODULES = {
    "mlp": (Mlp, lambda m, f: F.mse_loss(m(f["x"], f["mask"]), f["y"]),
            lambda n: {"x": torch.randn(n, 12), "mask": (torch.rand(n, 12) > 0.2).float(), "y": torch.randn(n, 5)}),
    "cnn": (Cnn, lambda m, f: F.cross_entropy(m(f["images"]), f["labels"]),
            lambda n: {"images": torch.rand(n, 1, 12, 12), "labels": torch.randint(0, 4, (n,))}),
    "gpt": (Gpt, next_token_loss, _tokens),
    "gpt_dropout": (lambda: Gpt(0.1), next_token_loss, _tokens),
    "gpt_tied": (TiedGpt, next_token_loss, _tokens),
    "gpt_counted": (Gpt, sum_and_count, _uneven),
    "cnn_norms": (NormedCnn, lambda m, f: F.cross_entropy(m(f["images"]), f["labels"]),
                  lambda n: {"images": torch.rand(n, 1, 8, 8), "labels": torch.randint(0, 4, (n,))}),
    "drawing": (Drawing, lambda m, f: F.mse_loss(m(f["x"]), f["y"]),
                lambda n: {"x": torch.randn(n, 12), "y": torch.randn(n, 5)}),
    "noisy": (Noisy, lambda m, f: F.mse_loss(m(f["x"]), f["y"]),
              lambda n: {"x": torch.randn(n, 12), "y": torch.randn(n, 5)}),
    "classifier": (Classifier, classified, lambda n: {"x": torch.randn(n, 12), "classes": torch.randint(0, 4, (n,))}),
    "gpt_scored": (lambda: Gpt(0.1, blocks=1), sum_and_count_scored, _uneven),
    "lstm": (Lstm, next_token_loss, _tokens),
    "gpt_bf16": (TiedGpt, sum_and_count, _uneven),
    "functions": (Functions, lambda m, f: F.mse_loss(m(f["x"]), f["y"]),
                  lambda n: {"x": torch.randn(n, 12), "y": torch.randn(n, 12)}),
    "typed": (Typed, lambda m, f: F.cross_entropy(m(f["image"], f["keep"], f["word"], f["scale"]), f["label"].long()), _typed),
    "contrast": (Contrast, lambda m, f: F.cross_entropy(m(f["x"]), torch.arange(len(f["x"]))),
                 lambda n: {"x": torch.randn(n, 12)}),
}


MODULES["norms_bf16"] = MODULES["cnn_norms"]  # in the other precision

MODULES_WITH_PLUGINS = {
    "plugged": (Plugged, lambda m, f: F.mse_loss(m(f["x"]), f["y"]),
                lambda n: {"x": torch.randn(n, 12), "y": torch.randn(n, 5)}),
    "plugged_python": (lambda: Plugged("weft_test_python"), lambda m, f: F.mse_loss(m(f["x"]), f["y"]),
                       lambda n: {"x": torch.randn(n, 12), "y": torch.randn(n, 5)}),
}


# ---- what weft.export refuses

class _Doubled(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(_, x):
        return x * 1.0

    @staticmethod
    def backward(_, gradient):
        return gradient * 2


class Chain(nn.Module):
    """Three linear layers; `between` is called with the output of the second."""

    def __init__(self, between=lambda x: x):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.between = between
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layers[2](self.between(self.layers[1](self.layers[0](x))))


class Counting(Chain):
    def forward(self, x):
        return super().forward(x) * self.calls


class Tied(Chain):
    """All layers are one."""

    def __init__(self):
        super().__init__()
        self.layers[1] = self.layers[2] = self.layers[0]


class Averaging(Chain):
    """Writes a buffer that is no batch norm's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x):
        self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return super().forward(x) + self.average


class Unused(Chain):
    def __init__(self):
        super().__init__()
        self.more = nn.Linear(6, 6)


def _hooked(x):
    x.register_hook(lambda gradient: gradient * 3)
    return x


class _CountingCalls:
    """Computes otherwise once it has been traced."""

    def __init__(self):
        self._calls = 0

    def __call__(self, x):
        self._calls += 1
        return x * 2 if self._calls > 4 else x * 3


def _without_gradients(x):
    with torch.no_grad():
        scale = x.mean(1, keepdim=True)
    return x * scale


def loss_in_training_only(model, fields):
    if not model.training:
        raise ValueError("no loss in evaluation mode")
    return F.mse_loss(model(fields["x"]), fields["y"])


def _figures(**more):
    """A loss function that returns further figures, each made of the model's output."""
    def loss(model, fields):
        made = model(fields["x"])
        return {"loss": made.square().mean(), **{name: figure(made) for name, figure in more.items()}}
    return loss


# Refusals by title: the module, words of the refusal, None for a module that is fine, and a loss of its own.
REFUSED = {
    "a custom autograd function": (lambda: Chain(_Doubled.apply), "layer layers.1 is the first, from the loss on"),
    "a hook on a tensor": (lambda: Chain(_hooked), "layer layers.1 is the first, from the loss on"),
    "a batch norm of all batches": (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=None)), "with momentum=None"),
    "a written buffer": (Averaging, "writes the buffer average"),
    "random numbers of an own law": (lambda: Chain(lambda x: x + torch.poisson(x.detach() ** 2)), "aten::poisson"),
    "a branch on values": (lambda: Chain(lambda x: x if x.sum() > 0 else -x), "torch.export cannot trace the model"),
    "state in Python": (Counting, "state in Python"),
    "state in Python of the first layer": (lambda: Chain(_CountingCalls()), "layer layers.1 is the first whose output the model does not make"),
    "tied parameters": (Tied, None),
    "batch norms": (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6)), None),
    "a parameter without use": (Unused, "gets no gradient"),
    "a region without gradients": (lambda: Chain(_without_gradients), None),
    "a model that asks whether it is compiled": (lambda: Chain(lambda x: x * 2 if torch.compiler.is_compiling() else x), None),
    "a detached tensor": (lambda: Chain(lambda x: x * x.detach()), None),
    "a sum and a count": (Chain, None, lambda m, f: (m(f["x"]).square().sum(), (f["y"] > 0).sum())),
    "a field that the example lacks": (Chain, "the field 'labels', and the example has only x, y",
                                       lambda m, f: (m(f["x"]) - f["labels"]).square().mean()),
    "a loss that is no function": (Chain, "`loss` must be a function", "mse"),
    "figures": (Chain, None, _figures(most=lambda y: y.max(), many=lambda y: (y.sum(), y.numel()), three=lambda y: 3)),
    "a figure of many numbers": (Chain, "the figure each is a tensor of the size [4, 6]", _figures(each=lambda y: y)),
    "a figure that is none": (Chain, "the figure none is a NoneType", _figures(none=lambda y: None)),
    "a figure of three numbers": (Chain, "the figure much has 3 numbers", _figures(much=lambda y: (y.sum(), y.sum(), y.sum()))),
    "a figure with a wrong name": (Chain, "must have a name of letters", _figures(**{"top 5": lambda y: y.max()})),
    "a figure with a name that is taken": (Chain, "the figure samples must have another name", _figures(samples=lambda y: y.max())),
    "figures without the loss": (Chain, 'a dictionary without "loss"', lambda m, f: {"error": m(f["x"]).square().mean()}),
    "figures in training mode only": (Chain, "torch.export cannot trace",
                                      lambda m, f: {"loss": loss_in_training_only(m, f), "most": f["x"].max()}),
    "a count of what the model makes": (Chain, "computed from the data alone",
                                        lambda m, f: (m(f["x"]).square().sum(), (m(f["x"]) > 0).sum())),
    "a count that is none": (Chain, "computed from the data alone", lambda m, f: (m(f["x"]).square().sum(), 24)),
}

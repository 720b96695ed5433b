"""Models that their authors wrote, of transformers and torchvision, so small that the repository can hold them.

make_models.py writes them with random weights; exported.py trains them without PyTorch. known_models.py has larger ones.
"""
import torch
import torch.nn.functional as F
from torch import nn

SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _tokens(n):
    ids = torch.randint(1, 32, (n, 8))
    return {"input_ids": ids, "labels": ids.clone()}


def _padded(n):
    return {**_tokens(n), "attention_mask": torch.ones(n, 8, dtype=torch.int64).index_fill_(1, torch.tensor([7]), 0)}


def _images(n):
    return {"pixel_values": torch.rand(n, 3, 8, 8), "labels": torch.randint(0, 4, (n,))}


def _own_loss(model, fields):
    return model(**fields).loss


def _scores_loss(model, fields):
    return F.cross_entropy(model(fields["pixel_values"]), fields["labels"])


def _gpt2():
    import transformers as t
    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=8, bos_token_id=0,
                                          eos_token_id=0, use_cache=False))  # with its dropout


def _llama():
    import transformers as t
    return t.LlamaForCausalLM(t.LlamaConfig(**SIZES, num_key_value_heads=1))


def _mixtral():
    import transformers as t
    return t.MixtralForCausalLM(t.MixtralConfig(**SIZES, num_key_value_heads=1, num_local_experts=2, num_experts_per_tok=1,
                                                experts_implementation="batched_mm"))


def _bert():
    import transformers as t
    return t.BertForMaskedLM(t.BertConfig(**SIZES, **NO_DROPOUT, max_position_embeddings=8))


def _t5():
    import transformers as t
    return t.T5ForConditionalGeneration(t.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0,
        relative_attention_num_buckets=4, use_cache=False))


def _vit():
    import transformers as t
    return t.ViTForImageClassification(t.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        **NO_DROPOUT, num_labels=4))


def _efficientnet():
    import torchvision.models as v
    block = v.efficientnet.MBConvConfig
    return v.EfficientNet([block(1, 3, 1, 8, 8, 1), block(4, 3, 2, 8, 16, 1)], dropout=0.0, stochastic_depth_prob=0.0,
                          last_channel=32, num_classes=4)


class Denoiser(nn.Module):
    """A U-Net that predicts the noise of an image at a time, as that of DDPM: the time, as sines, shifts each size."""

    def __init__(self, width=8):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, 2 * width))
        self.into, self.small = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.first, self.second = nn.GroupNorm(2, width), nn.GroupNorm(2, 2 * width)
        self.wide = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)
        self.register_buffer("waves", torch.exp(-torch.arange(width // 2) * 0.7))

    def forward(self, image, time):
        angles = time[:, None] * self.waves
        shift = self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        large = F.silu(self.first(self.into(image)))
        small = F.silu(self.second(self.small(large)) + shift)
        return self.out(torch.cat([large, self.wide(small)], 1))


def denoising_loss(model, fields):
    """Draws a time and noise for each image; the model says what the noise is."""
    clean = fields["image"]
    time = torch.randint(0, 100, (clean.shape[0],)).float()
    noise = torch.randn_like(clean)
    kept = torch.cos(time / 100 * 1.5)[:, None, None, None]
    return F.mse_loss(model(kept * clean + (1 - kept * kept).sqrt() * noise, time), noise)


# The models by name: each with its loss and a function that makes samples, as modules.MODULES.
ARCHITECTURES = {
    "known_gpt2": (_gpt2, _own_loss, _tokens),
    "known_llama": (_llama, _own_loss, _tokens),
    "known_mixtral": (_mixtral, _own_loss, _tokens),
    "known_bert": (_bert, _own_loss, _padded),
    "known_t5": (_t5, _own_loss, _padded),
    "known_vit": (_vit, _own_loss, _images),
    "known_efficientnet": (_efficientnet, _scores_loss, _images),
    "known_ddpm": (Denoiser, denoising_loss, lambda n: {"image": torch.rand(n, 1, 8, 8)}),
}

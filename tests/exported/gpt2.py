#!/usr/bin/env python3
"""Gives weights of transformers' GPT-2 to the built-in gpt, trains it, and takes them back.

    gpt2.py BIN_DIR      with a Python that has torch and transformers; exits 77, with one line, where they are not there
"""
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
RUN = """
model: {gpt: {layers: 2, width: 16, heads: 2, context: 8, gelu: tanh, tied: TIED}}
data: {text: {path: text.txt}}
train: {steps: 1, batch: 8, microbatches: 2, optimizer: {sgd: {lr: 0.5}}}
stages: STAGES
schedule: 1f1b
weights: gpt2.safetensors
"""
# Float32's rounding in a loss near 5; the GELU by erf changes it by 1e-4 and more.
TOLERANCE = 3e-6


def loss_of(model, samples):
    import torch.nn.functional as F
    return F.cross_entropy(model(samples[:, :-1]).logits.flatten(0, 1), samples[:, 1:].flatten())


def main():
    if any(importlib.util.find_spec(module) is None for module in ("torch", "transformers")):
        print("SKIPPED: python3 has no torch or no transformers; weights of GPT-2 have not been tried")
        return 77
    import torch
    import transformers
    sys.path.insert(0, str(SOURCE / "python"))
    failures = []
    for tied in (True, False):
        torch.manual_seed(3)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=256, n_positions=8, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            initializer_range=0.5, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0))
        with tempfile.TemporaryDirectory() as name:
            failures += differences(pathlib.Path(name), pathlib.Path(sys.argv[1]) / "weft", model, tied)
    return 1 if failures else 0


def differences(folder, program, model, tied):
    """Trains one step there and here; returns what differs."""
    import torch
    import weft
    from weft.graph_file import write_safetensors
    text = ("to be or not to be, that is the question: " * 4)[:65].encode()
    (folder / "text.txt").write_bytes(text)
    (folder / "run.yaml").write_text(RUN.replace("TIED", str(tied).lower()).replace("STAGES", "3" if tied else "2"))
    write_safetensors(folder / "gpt2.safetensors", weft.from_gpt2(model.state_dict(), tied=tied))
    out = folder / "out"
    subprocess.run([program, "train", folder / "run.yaml", "--out", out], check=True, capture_output=True)
    made = json.loads((out / "steps.jsonl").read_text().splitlines()[0])["loss"]
    loss = loss_of(model, torch.tensor(list(text)).unfold(0, 9, 8))
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad
    again = weft.to_gpt2(weft.load_checkpoint(out))
    wrong = [n for n, p in model.state_dict().items() if n not in again or not torch.allclose(p, again[n], atol=1e-6, rtol=1e-5)]
    wrong += [] if abs(made - loss.item()) < TOLERANCE else ["the loss"]
    model.load_state_dict(again, strict=True)
    print(f"{'tied' if tied else 'not tied'}: loss {made!r}, transformers' {loss.item()!r}; {len(again)} tensors back, {len(wrong)} differ")
    return wrong


if __name__ == "__main__":
    sys.exit(main())

"""A stitch from scratch: what `python train.py` does at its first layer, in plain PyTorch.

python examples/stitch_from_scratch.py          a minute on one core, offline

The first block of gelu-3l-mini feeds blocks 1 and 2 of solu-3l-mini through a linear map φ. It prints the target's
own loss, the loss of the stitched model, and their difference, the penalty, next to those of no map at all.

The penalty is about 0.25 nats per token here, and 0.19 in the table of `python train.py`. That reads its rows from all
documents instead of the first ones, and leaves out held-out documents that nearly repeat one to fit on. It also has
intervals, further baselines and a bound on what more training would gain.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

ASSETS = Path(__file__).parents[1] / "src" / "thinkalike" / "assets"
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}

LAYER = 0
CONTEXT = 256
HEADS = 4
STEPS = 300
WARMUP = 30
ROWS_PER_STEP = 8
ROWS_FOR_LEAST_SQUARES = 64
MOMENTUM = 0.9
RATE = 1.0

# The report reads the beginning of each held-out document, so that long ones do not fill it.
REPORT_ROWS = 1024
REPORT_CHARACTERS = 10_000


class Mini:
    """A bundled model: a transformer with layer norms before attention and MLP, by its weights alone."""

    def __init__(self, name: str):
        stored = load_file(ASSETS / name / "model.safetensors")  # in 16 bits
        self.weights = {key: weight.float() for key, weight in stored.items()}
        self.is_solu = name.startswith("solu")

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the input of block 0, (rows, positions, width)."""
        return self.weights["tok_embed.weight"][tokens] + self.weights["pos.weight"][: tokens.shape[1]]

    def block(self, number: int, x: Tensor) -> Tensor:
        """Return the residual stream after a block."""
        name = f"layers.{number}"
        x = x + self.attention(f"{name}.attn", self.norm(f"{name}.ln1", x))
        hidden = self.linear(f"{name}.mlp.fc_in", self.norm(f"{name}.ln2", x))
        if self.is_solu:
            hidden = self.norm(f"{name}.mlp.ln", hidden * hidden.softmax(-1))
        else:
            hidden = F.gelu(hidden)
        return x + self.linear(f"{name}.mlp.fc_out", hidden)

    def attention(self, name: str, x: Tensor) -> Tensor:
        rows, positions, width = x.shape

        def heads(part: str) -> Tensor:
            return self.linear(f"{name}.{part}", x).view(rows, positions, HEADS, -1).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(heads("q"), heads("k"), heads("v"), is_causal=True)
        return self.linear(f"{name}.o", mixed.transpose(1, 2).reshape(rows, positions, width))

    def head(self, layer: int, tokens: Tensor) -> Tensor:
        """Return the state after block `layer`, (rows, positions, width)."""
        x = self.embed(tokens)
        for number in range(layer + 1):
            x = self.block(number, x)
        return x

    def tail(self, layer: int, x: Tensor) -> Tensor:
        """Return the logits that follow from the state after block `layer`, (rows, positions, vocabulary)."""
        for number in range(layer + 1, 3):
            x = self.block(number, x)
        return self.linear("head", self.norm("ln_out", x))


def documents(is_for_evaluation: bool) -> Iterator[str]:
    """Yield the files of Python's library: by a hash of its content, one in ten is for the report."""
    texts = []
    for folder, subfolders, names in os.walk(sysconfig.get_paths()["stdlib"]):
        subfolders[:] = [name for name in subfolders if name not in LEFT_OUT]
        for name in names:
            if name.endswith(".py"):
                texts.append(Path(folder, name).read_text(encoding="utf-8", errors="replace"))

    def fingerprint(text: str) -> str:
        return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()

    for text in sorted(texts, key=fingerprint):
        uniform = int(fingerprint(text)[:8], 16) / 16**8
        if is_for_evaluation and uniform < 0.1:
            yield text[:REPORT_CHARACTERS]
        if not is_for_evaluation and uniform >= 0.1:
            yield text


def token_rows(texts: Iterator[str], count: int) -> Tensor:
    """Join documents with the end-of-text token, and return at most `count` rows of tokens, (rows, CONTEXT)."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ASSETS / "gelu-3l-mini" / "tokenizer.json"))
    end_of_text = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    token_ids: list[int] = []
    for text in texts:
        token_ids += [*tokenizer(text)["input_ids"], end_of_text]
        if len(token_ids) >= count * CONTEXT:
            break
    rows = min(len(token_ids) // CONTEXT, count)
    return torch.tensor(token_ids[: rows * CONTEXT]).view(rows, CONTEXT)


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the cross-entropy of the next token, in nats per token."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def least_squares(source_states: Tensor, target_states: Tensor) -> Tensor:
    """Return the matrix W for which source_states Wᵀ is closest to target_states; states are (rows, width)."""
    return torch.linalg.lstsq(source_states, target_states).solution.T


def train(source: Mini, target: Mini, fit_rows: Tensor) -> Tensor:
    """Return φ, a (width, width) matrix, trained so that the stitched model predicts as the target does."""
    with torch.no_grad():
        first = fit_rows[:ROWS_FOR_LEAST_SQUARES]
        source_states = source.head(LAYER, first).flatten(0, 1)
        phi = least_squares(source_states, target.head(LAYER, first).flatten(0, 1))
        second_moments = source_states.T @ source_states / len(source_states)
        inverse = torch.linalg.inv(second_moments)
    phi.requires_grad_()
    velocity = torch.zeros_like(phi)
    late_maps = []

    for step in range(STEPS):
        tokens = fit_rows[step * ROWS_PER_STEP : (step + 1) * ROWS_PER_STEP]
        with torch.no_grad():
            state = source.head(LAYER, tokens)
            aim = target.tail(LAYER, target.head(LAYER, tokens)).log_softmax(-1)

        # The divergence from the target's own predictions: labels are noise, which would drive φ away from its answer.
        predicted = target.tail(LAYER, state @ phi.T).log_softmax(-1)
        loss = F.kl_div(predicted.flatten(0, 1), aim.flatten(0, 1), log_target=True, reduction="batchmean")
        (gradient,) = torch.autograd.grad(loss, phi)

        with torch.no_grad():
            # States have a few large directions. Whitened steps learn equally fast in all of them.
            whitened = gradient @ inverse
            norm = (gradient * whitened).sum().sqrt()
            whitened /= max(float(norm), 1.0)

            # Nesterov's momentum, with a rate that rises during the warm-up and then stays.
            velocity = MOMENTUM * velocity + whitened
            phi -= RATE * min((step + 1) / WARMUP, 1.0) * (whitened + MOMENTUM * velocity)
        if step >= STEPS // 2:
            late_maps.append(phi.detach().clone())

    # A constant rate leaves noise in φ, and the mean of late steps averages it out.
    return torch.stack(late_maps).mean(0)


@torch.no_grad()
def main() -> None:
    """Train φ, and print the losses on documents that it was not trained on."""
    source = Mini("gelu-3l-mini")
    target = Mini("solu-3l-mini")
    with torch.enable_grad():
        phi = train(source, target, token_rows(documents(is_for_evaluation=False), STEPS * ROWS_PER_STEP))

    losses = torch.zeros(3)
    report_rows = token_rows(documents(is_for_evaluation=True), REPORT_ROWS)
    for tokens in report_rows.split(ROWS_PER_STEP):
        state = source.head(LAYER, tokens)
        own = target.tail(LAYER, target.head(LAYER, tokens))
        stitched = target.tail(LAYER, state @ phi.T)
        unmapped = target.tail(LAYER, state)
        losses += torch.stack([next_token_loss(logits, tokens) for logits in (own, stitched, unmapped)]) * len(tokens)

    target_loss, stitching_loss, identity_loss = (losses / len(report_rows)).tolist()
    print(f"solu-3l-mini alone            {target_loss:.2f} nats per token")
    print(f"stitched at layer {LAYER}           {stitching_loss:.2f}, penalty {stitching_loss - target_loss:.2f}")
    print(f"identity baseline (no map)    {identity_loss:.2f}, penalty {identity_loss - target_loss:.2f}")


if __name__ == "__main__":
    main()

"""Models whose residual stream is rotated: the same function by other numbers."""

import torch


def rotation(width):
    """A random orthogonal map that keeps the mean over the width, so that a LayerNorm without gain commutes with it."""
    mean = torch.full((width, 1), width**-0.5)
    basis = torch.linalg.qr(torch.cat([mean, torch.randn(width, width - 1)], 1)).Q
    turned = basis.clone()
    turned[:, 1:] = basis[:, 1:] @ torch.linalg.qr(torch.randn(width - 1, width - 1)).Q
    return turned @ basis.T


@torch.no_grad()
def rotate(module, q):
    """Fold every norm into what follows it, then conjugate all blocks with q: the same function of tokens."""

    def fold(norm, *linears):
        for linear in linears:
            if linear.bias is None:
                linear.bias = torch.nn.Parameter(torch.zeros(len(linear.weight)))
            linear.bias += linear.weight @ norm.bias
            linear.weight.copy_(linear.weight * norm.weight @ q.T)
        norm.weight.fill_(1)
        norm.bias.zero_()

    for block in module.layers:
        fold(block.ln1, block.attn.q, block.attn.k, block.attn.v)
        fold(block.ln2, block.mlp.fc_in)
        for linear in (block.attn.o, block.mlp.fc_out):
            linear.weight.copy_(q @ linear.weight)
            linear.bias.copy_(q @ linear.bias)
    fold(module.ln_out, module.head)
    for embedding in (module.tok_embed, module.pos):
        embedding.weight.copy_(embedding.weight @ q.T)
    return module

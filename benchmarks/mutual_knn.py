"""Mutual nearest neighbours of 13 x 13 layers on one batch, n = 1024, d = 768: ours beside its floor and scikit-learn.

    python benchmarks/mutual_knn.py                   one thread, half a minute
    python benchmarks/mutual_knn.py --device cuda

The floor is the 26 matrices of similarities at the peak of a large product, and finding the k greatest of each row.
"""

from __future__ import annotations

import torch
from measuring import Row, floor, in_turn, large_product, options_of, scaled, table
from sklearn.neighbors import NearestNeighbors

from thinkalike.measures import MutualKNN

LAYERS, N, D, K = 26, 1024, 768, 10


def by_sklearn(layers: list[torch.Tensor]) -> torch.Tensor:
    member = torch.zeros(len(layers), N, N)
    for own, layer in zip(member, layers, strict=True):
        rows = layer.cpu().numpy()
        near = NearestNeighbors(n_neighbors=K, metric="cosine", algorithm="brute").fit(rows).kneighbors()[1]
        own.scatter_(1, torch.from_numpy(near), 1.0)
    flat = member.flatten(1)
    return (flat @ flat.T).double() / (K * N)


def main() -> None:
    options = options_of(__doc__, device="cpu", rounds=5)
    shared = torch.randn(N, D)
    layers = [(shared + torch.randn(N, D)).to(options.device) for _ in range(LAYERS)]
    similarity = torch.randn(N, N, device=options.device)
    work = {
        "ours": lambda: MutualKNN(K).matrix(layers, layers),
        "peak": large_product(device=options.device),
        "top": lambda: similarity.topk(K, dim=1),
        "scikit-learn": lambda: by_sklearn(layers),
    }
    times = in_turn(work, options.rounds, options.device)
    error = float((MutualKNN(K).matrix(layers, layers).cpu() - by_sklearn(layers)).abs().max())
    rows = [
        Row("ours", times["ours"]),
        Row("floor", floor(2 * LAYERS * N * N * D, times["peak"], scaled(times["top"], LAYERS), device=options.device)),
        Row("scikit-learn's neighbours", times["scikit-learn"], f"differs by {error:.1e}"),
    ]
    print(table(f"{LAYERS} layers, n = {N}, d = {D}, k = {K}, float32, {options.device}", rows))


if __name__ == "__main__":
    main()

"""Sums of values of tokens by document, which intervals over documents need."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.bootstrap import sum_by_document


class DocumentSums(dict[str, Tensor]):
    """Sums over the tokens of each document by name, (*b, documents) in float64.

    Args:
        documents: The document of each token; the largest number says how many documents there
            are.
    """

    def __init__(self, documents: Int[Tensor, "rows t"]):
        super().__init__()
        self.document_count = int(documents.max()) + 1

    def add(
        self, documents: Int[Tensor, " n"], values_by_name: Mapping[str, Float[Tensor, "*b n"]]
    ) -> None:
        """Add the values of some tokens to the sums of their documents.

        Args:
            documents: The index of each token's document. Tokens with a negative one are left out.
            values_by_name: The values of the tokens for each name, of several quantities if there
                are axes before the last. A new name begins with sums of 0.
        """
        has_document = documents >= 0
        for name, values in values_by_name.items():
            sums = sum_by_document(
                values.cpu()[..., has_document], documents[has_document], self.document_count
            )
            if name in self:
                self[name] = self[name] + sums
            else:
                self[name] = sums

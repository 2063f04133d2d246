"""What remains of states when the word, its position and the earlier tokens are known.

All that follows is fitted on other documents than those that are judged. States of the same words
lose, in this order,

1. the mean of their word and of its position, the number of its last token, within a fold of
   documents;
2. what a ridge regression predicts of the rest from covariates: `COMPONENTS_OF_BAG` principal
   components of each bag of earlier tokens, and functions of the positions that other tokenizers
   give the word. It is cross-fitted over folds of documents, see `thinkalike.measures.ridge`.

Without the second step, a network that knows nothing but how to average the embeddings of
neighbouring words shares as much with a model as another trained model does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.ridge import FOLDS, Predictor, fold_of
from thinkalike.measures.row_groups import RowGroups

# Principal components that are kept of each bag of earlier tokens.
COMPONENTS_OF_BAG = 64

# A word must stand this often in a fold: less their mean, its states then say what the word alone
# does not.
FEWEST_REPETITIONS = 2

# Functions of a position: smooth ones, an indicator for each of the first positions, as models
# treat the first tokens apart, and indicators of ranges of later positions, of equal ratio.
SMOOTH_FUNCTIONS = 4
FIRST_POSITIONS = 12
LATER_POSITIONS = 12
POSITION_FUNCTIONS = SMOOTH_FUNCTIONS + FIRST_POSITIONS + LATER_POSITIONS
LAST_POSITION = 2**12

# The ridge penalises functions of positions more than components of bags.
POSITION_WEIGHT = 0.1

# A constant function must not divide by its standard deviation, 0.
LEAST_DEVIATION = 1e-6

# Rows that must be compared for each dimension of the wider model, ...
ROWS_PER_DIMENSION = 2

# ... and for each covariate. With a third of these, intervals miss the value of more text in one
# case of five.
ROWS_PER_COVARIATE = 8


class ResidualStates:
    """Takes word, position and linear mixing out of the states of the same words.

    Args:
        words: The number of each row's word; equal words have equal numbers.
        documents: The number of each row's document, by `numbered_by_part`.
        positions: The position of each row's word in the tokens of one model or more.
        mixing: States (n, _) that are linear in the embeddings of the tokens so far, such as bags.
        is_compared: Which rows are compared; None: all.

    Attributes:
        rows: Which rows are compared, in the order of all that is returned: those whose word
            stands `FEWEST_REPETITIONS` times within their fold.
        documents: The number of the document of each of these.
        covariates: How many covariates each row has.

    Raises:
        ValueError: In some fold, no word stands twice.

    >>> words = torch.arange(200) % 20
    >>> documents = torch.arange(200) // 20
    >>> residual = ResidualStates(words, documents, [torch.arange(200) % 10])
    >>> residual.of(torch.randn(200, 8)).shape
    torch.Size([200, 8])
    """

    @takes_arrays
    def __init__(
        self,
        words: Int[Tensor, " n"],
        documents: Int[Tensor, " n"],
        positions: Sequence[Int[Tensor, " n"]],
        mixing: Iterable[Float[Tensor, "n _"]] = (),
        is_compared: Bool[Tensor, " n"] | None = None,
    ):
        folds = fold_of(documents)
        if is_compared is None:
            is_compared = torch.ones(len(words), dtype=torch.bool)
        self._position = positions[0]
        self._folds: list[tuple[Tensor, RowGroups]] = []
        for fold in range(FOLDS):
            rows = (is_compared & (folds == fold)).nonzero()[:, 0]
            self._folds.append((rows, RowGroups.of(words[rows], FEWEST_REPETITIONS)))
        self.rows: Int[Tensor, " kept"] = torch.cat(
            [rows[groups.order] for rows, groups in self._folds]
        )
        self.documents: Int[Tensor, " kept"] = documents[self.rows]
        covariates = [principal_components(self._without_means(states)) for states in mixing]
        for position in positions[1:]:
            functions = self._without_means(functions_of(position))
            covariates.append(functions * POSITION_WEIGHT)
        self.covariates = sum(columns.shape[1] for columns in covariates)
        self._covariates: Predictor | None = None
        if covariates:
            self._covariates = Predictor(torch.cat(covariates, 1), self.documents)

    @takes_arrays
    def of(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "kept d"]:
        """Return what is left of states, in the order of `rows`, in float64.

        It is in units of the largest entry if there are covariates.
        """
        residuals = self._without_means(states)
        if self._covariates is None:
            return residuals
        return self._covariates.residuals(residuals)

    def predictor(self, states: Float[Tensor, "n d"]) -> Predictor:
        """Return a predictor from what is left of these states.

        It is to predict what is left of others, which `of` returns, on the same rows.
        """
        return Predictor(self.of(states), self.documents)

    def plain_predictor(self, states: Float[Tensor, "n d"]) -> Predictor:
        """Return the predictor from these states as they are, on the rows of `predictor`."""
        return Predictor(states[self.rows], self.documents)

    def _without_means(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "kept d"]:
        """Return states less the means of their word and of its position within a fold.

        The mean of a fold depends on no other fold, so that rows that are judged do not enter the
        rows that maps are fitted on.
        """
        folds = []
        for rows, groups in self._folds:
            folds.append(groups.without_means(states[rows], self._position[rows]))
        return torch.cat(folds)


def fewest_rows(width: int, covariates: int) -> int:
    """Return how many rows must be compared before a number is given.

    With fewer rows, a map does not find what one model predicts of the other, or the covariates
    explain everything.

    Args:
        width: The width of the wider model.
        covariates: How many covariates each row has, see `ResidualStates`.
    """
    return max(ROWS_PER_DIMENSION * width, ROWS_PER_COVARIATE * covariates)


def principal_components(states: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """Return the leading `COMPONENTS_OF_BAG` principal components of centred states, or all d.

    They are scaled together so that the mean over rows of their sum of squares is 1; states that
    are all 0 stay 0.
    """
    directions = torch.linalg.eigh(states.T @ states).eigenvectors[:, -COMPONENTS_OF_BAG:]
    components: Tensor = states @ directions
    size = components.norm() / len(components) ** 0.5
    size = size.clamp(min=torch.finfo(components.dtype).tiny)
    unit_components: Tensor = components / size
    return unit_components


def functions_of(position: Int[Tensor, " n"]) -> Float[Tensor, "n f"]:
    """Return f = `POSITION_FUNCTIONS` functions of a position t from 0, in float64.

    They are t, log (1 + t), 1 / (1 + t), 1 / √(1 + t), the indicators of the first positions, and
    those of ranges of later ones. Each has standard deviation 1 over the rows, or is constant.
    """
    t = position.double()
    smooth = [t, (1 + t).log(), 1 / (1 + t), (1 + t).rsqrt()]
    first = [(t == number).double() for number in range(FIRST_POSITIONS)]
    ratio = LAST_POSITION / FIRST_POSITIONS
    edges = torch.logspace(0, 1, LATER_POSITIONS + 1, base=ratio) * FIRST_POSITIONS
    later = []
    for low, high in itertools.pairwise(edges):
        later.append(((t >= low) & (t < high)).double())
    functions = torch.stack([*smooth, *first, *later], 1)
    return functions / functions.std(0).clamp(min=LEAST_DEVIATION)

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
            occurs at least `FEWEST_REPETITIONS` times within their fold.
        documents: The number of the document of each of these.
        covariate_count: How many covariates each row has.

    Raises:
        ValueError: In some fold, no word occurs twice.

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
        """Group the compared rows by word within each fold of documents, and compute covariates.

        States later lose the mean of their word and of its position in the tokens of the first
        model, `positions[0]`, and then what the covariates predict of them. Covariates of a row
        are the leading principal components of each entry of `mixing`, which are states that are
        linear in the embeddings of the tokens so far, and functions of the position of its word in
        the tokens of the further models, `positions[1:]`.
        """
        folds = fold_of(documents)
        if is_compared is None:
            is_compared = torch.ones(len(words), dtype=torch.bool)
        self._position = positions[0]
        # for each fold its rows that are compared, and which of them have the same word
        self._folds: list[tuple[Tensor, RowGroups]] = []
        rows_of_folds = []
        for fold in range(FOLDS):
            rows = (is_compared & (folds == fold)).nonzero()[:, 0]
            # Words with fewer than `FEWEST_REPETITIONS` rows in the fold are in no group.
            groups_of_words = RowGroups.of(words[rows], FEWEST_REPETITIONS)
            self._folds.append((rows, groups_of_words))
            rows_of_folds.append(rows[groups_of_words.order])
        self.rows: Int[Tensor, " kept"] = torch.cat(rows_of_folds)
        self.documents: Int[Tensor, " kept"] = documents[self.rows]

        covariates = [principal_components(self._without_means(states)) for states in mixing]
        for position in positions[1:]:
            functions = self._without_means(functions_of_position(position))
            covariates.append(functions * POSITION_WEIGHT)
        self.covariate_count = sum(columns.shape[1] for columns in covariates)
        self._covariate_predictor: Predictor | None = None
        if covariates:
            self._covariate_predictor = Predictor(torch.cat(covariates, 1), self.documents)

    @takes_arrays
    def of(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "kept d"]:
        """Return states minus what their word, its position and the earlier tokens predict.

        The means of the word and of its position are subtracted first, and then what a regression
        on the covariates, functions of earlier tokens and of positions, predicts of the rest. The
        latter also divides all states by the largest absolute entry of this rest. Without
        covariates only the means are subtracted.

        Only rows whose word occurs often enough are returned, in float64. The attribute `rows` has
        their indices among the n rows, in the order of the result.
        """
        without_means = self._without_means(states)
        if self._covariate_predictor is None:
            return without_means
        return self._covariate_predictor.residuals(without_means)

    def predictor(self, states: Float[Tensor, "n d"]) -> Predictor:
        """Return a ridge predictor from states of which `of` has removed what is known.

        What is known is the effects of the word, of its position, and of linear mixing of the
        embeddings of earlier tokens. The states of another layer that it predicts must be treated
        in the same way.
        """
        return Predictor(self.of(states), self.documents)

    def plain_predictor(self, states: Float[Tensor, "n d"]) -> Predictor:
        """Return a ridge predictor from states as they are, on the rows that are compared."""
        return Predictor(states[self.rows], self.documents)

    def _without_means(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "kept d"]:
        """Return the compared states less the effects of their word and of their position.

        Both effects are means, fitted together by least squares within each fold of documents.
        Maps between models are later fitted on some folds and evaluated on another, so no mean may
        be taken over states of two folds. Only rows whose word occurs often enough in their fold
        are returned, in the order of `self.rows`, fold by fold.
        """
        residuals = []
        for rows, groups_of_words in self._folds:
            residuals.append(groups_of_words.without_means(states[rows], self._position[rows]))
        return torch.cat(residuals)


def fewest_rows(width: int, covariates: int) -> int:
    """Return the least number of rows from which residual R² can be estimated.

    Residual R² is the R² between the states of two models after the word, its position and the
    earlier tokens were regressed out. With fewer rows, the map between the models is fitted too
    badly, or the covariates explain everything by overfitting.

    Args:
        width: The width of the wider model.
        covariates: How many covariates each row has: components of the embeddings of earlier
            tokens, and functions of positions.
    """
    return max(ROWS_PER_DIMENSION * width, ROWS_PER_COVARIATE * covariates)


def principal_components(states: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """Return each row's coordinates along the k leading principal directions of the states.

    k is `COMPONENTS_OF_BAG`, or d for narrower states. All coordinates are divided by one number,
    so that the mean over rows of Σ coordinate² is 1; states that are all 0 stay 0.

    Args:
        states: States whose mean was subtracted already.
    """
    # Eigenvalues rise, so that the last eigenvectors are the leading directions.
    directions = torch.linalg.eigh(states.T @ states).eigenvectors[:, -COMPONENTS_OF_BAG:]
    components: Tensor = states @ directions  # (n, k)
    root_mean_square = components.norm() / len(components) ** 0.5
    root_mean_square = root_mean_square.clamp(min=torch.finfo(components.dtype).tiny)
    unit_components: Tensor = components / root_mean_square
    return unit_components


def functions_of_position(position: Int[Tensor, " n"]) -> Float[Tensor, "n f"]:
    """Return the values of f functions at each row's position t ≥ 0, in float64.

    A linear map of these values can express many ways in which states depend on the position. The
    functions are t, log (1 + t), 1 / (1 + t), 1 / √(1 + t), the indicators of the first
    `FIRST_POSITIONS` positions, and those of ranges of later positions up to `LAST_POSITION`,
    whose ends grow by a constant factor. Each is divided by its standard deviation over the rows,
    unless it is constant.
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

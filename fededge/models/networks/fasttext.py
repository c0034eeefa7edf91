"""fastText, for AG News in FedALA: the mean of the words' vectors, then a linear hidden layer."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["PADDING", "WIDTH", "FastText"]

PADDING = 0
WIDTH = 32


class FastText(nn.Module):
    """Map tokens int64 [N, length] to features [N, width].

    The mean leaves padding out, as in fastText. FedALA's code divides by the full length, padding
    included, which makes a short text's features small.
    """

    def __init__(self, vocabulary: int, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.hidden = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        words = (tokens != PADDING).to(self.embedding.weight.dtype)
        share = words / words.sum(1, keepdim=True).clamp(min=1)  # a text may be empty
        mean = (share[:, None] @ self.embedding(tokens))[:, 0]
        features: Tensor = self.hidden(mean)
        return features
